"""The examples that need no command line give the numbers that their texts promise."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from toys import Toy, batches, fit, mlp

from hookboard import Finding, HealthMonitor, Rule, Run

EXAMPLES = Path(__file__).parents[2] / "examples"
exercises = SimpleNamespace(**runpy.run_path(str(EXAMPLES / "exercises.py")))


@pytest.mark.trains
def test_the_health_rule_of_contributing_md_works_as_it_stands_there():
    (example,) = re.findall(r"```python\n(.*?)```", Path("CONTRIBUTING.md").read_text(), re.DOTALL)
    namespace = {"Iterator": Iterator, "Rule": Rule, "Run": Run, "Finding": Finding, "LARGE": 0.0}
    exec(example, namespace)
    monitor = HealthMonitor(rules=namespace["HUGE_OUTPUTS"], every_n_steps=1, window=1)
    fit(None, Toy(mlp()), batches(8, 8), monitor)
    assert {verdict.rule for verdict in monitor.verdicts} == {"huge_outputs"}


@pytest.mark.large
def test_the_feature_map_has_the_shape_of_the_layer():
    assert exercises.feature_map_of_a_vgg_layer().shape == (1, 256, 16, 16)


def test_what_hooks_saw_is_what_forward_returned(capsys):
    assert exercises.inputs_and_outputs_of_every_layer_but_relu6() == 0
    printed = capsys.readouterr().out
    assert "linear_1  Linear  output  (2, 2)  1.2" in printed
    assert "relu      ReLU    output  (2, 1)  3.4" in printed


def test_the_gradients_and_the_activations_are_those_of_the_exercises():
    assert exercises.gradient_of_an_intermediate_tensor() == 2
    assert exercises.doubled_gradient() == 2
    assert exercises.activations_of_a_pooling_layer().shape == (1, 8, 4, 4)


def test_both_mistakes_of_the_port_are_found_in_each_layer_and_nothing_else():
    found, mended = runpy.run_path(str(EXAMPLES / "port.py"))["main"]()
    wanted = [f"layers.{k}.{where}" for k in range(3) for where in ("o_proj (input)", "act (output)")]
    assert [str(one.spot) for one in found.differences] == wanted
    assert mended.differences == ()
    assert len(found.names) == 34
