"""The examples of CONTRIBUTING.md work as they stand there."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from combinations.case import Case, one_of
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from toys import Toy, batches, fit, images, mlp

from hookboard import ActivationLogger, Edit, Finding, HealthMonitor, Rule, Run, audit, capture
from hookboard.base.jobs import then
from hookboard.callbacks.pictures import Draw, PictureLogger, PictureState
from hookboard.capturing import EditRule
from hookboard.images import Picture
from hookboard.loops import Loop, Selection
from hookboard.measure import FORMULAS, sent_together
from hookboard.measure.statistics import _formula
from hookboard.model.selection import select
from hookboard.tracing.rules import TracedStep
from hookboard.writers.entry import Entry
from hookboard.writers.registry import place_of, write

EXAMPLES = re.findall(r"```python\n(.*?)```", Path("CONTRIBUTING.md").read_text(), re.DOTALL)

IMPORTED = {
    "Draw": Draw,
    "EditRule": EditRule,
    "Entry": Entry,
    "Iterator": Iterator,
    "Loop": Loop,
    "PictureLogger": PictureLogger,
    "PictureState": PictureState,
    "Rule": Rule,
    "Run": Run,
    "Selection": Selection,
    "Finding": Finding,
    "Tensor": Tensor,
    "dataclass": dataclass,
    "place_of": place_of,
    "nn": nn,
    "select": select,
    "sent_together": sent_together,
    "then": then,
    "write": write,
}
"""What the examples take as given."""

pytestmark = pytest.mark.trains


def defined(name, **given):
    """What the one example in which this name stands defines under it."""
    (example,) = [text for text in EXAMPLES if name in text]
    namespace = {**IMPORTED, **given}
    exec(example, namespace)
    return namespace[name]


def test_every_example_is_tried_here():
    assert len(EXAMPLES) == 7


def test_a_statistic(tmp_path, monkeypatch):
    (line,) = [text for text in EXAMPLES if "mean_square" in text]
    for name, formula in eval(f"{{{line}}}", {"_formula": _formula}).items():
        monkeypatch.setitem(FORMULAS, name, formula)
    net, data = mlp(), batches(8)
    expected = net[0](data[0]).detach().double().square().mean().item()
    callback = ActivationLogger("net.0", statistics="mean_square", every_n_steps=1)
    fit(tmp_path, Toy(net), data, callback)
    assert callback.readings[0].statistics["mean_square"] == pytest.approx(expected, rel=1e-6)


def test_a_picture(tmp_path):
    def weight_picture(weight):
        return Picture((weight > 0).numpy().astype(np.uint8), "weights")

    weight_logger = defined("WeightLogger", weight_picture=weight_picture)
    with pytest.warns(UserWarning, match="write the same tags.*weights/net.0"):
        fit(tmp_path, Toy(mlp()), batches(8), weight_logger(every_n_steps=1), weight_logger(every_n_steps=2))
    assert images(tmp_path).keys() == {"weights/net.0", "weights/net.2"}


def test_a_logger(tmp_path):
    class CometLogger(CSVLogger):
        pass

    defined("write_to_comet", CometLogger=CometLogger)
    logger = CometLogger(tmp_path)
    assert place_of(logger).startswith("Comet experiment")
    with pytest.warns(UserWarning, match="takes no histograms; they are left out there"):
        fit(None, Toy(mlp()), batches(8), ActivationLogger("net.0", every_n_steps=1, histogram=True), logger=logger)
    assert "activation_mean/net.0" in (Path(logger.log_dir) / "metrics.csv").read_text()


def test_a_rule_that_changes_tensors():
    net, x = mlp(), torch.ones(2, 4)
    expected = -net(x)
    with capture(net, "2", edit=Edit(defined("Negate")(), "2")):
        assert torch.equal(net(x), expected)


def test_a_health_rule():
    monitor = HealthMonitor(rules=defined("HUGE_OUTPUTS", LARGE=0.0), every_n_steps=1, window=1)
    fit(None, Toy(mlp()), batches(8, 8), monitor)
    assert {verdict.rule for verdict in monitor.verdicts} == {"huge_outputs"}


def test_a_rule_about_the_step(monkeypatch):
    rule = defined("ROUNDED", TracedStep=TracedStep)
    monkeypatch.setattr("hookboard.tracing.reading.QUESTIONS", [rule])
    net = mlp()
    (found,) = audit(net, batches(8)[0], lambda batch: net(batch).round().sum())
    assert (found.severity, found.rule) == ("note", "rounded")
    assert found.evidence.startswith("round at test_contributing.py:")


def test_a_circumstance(tmp_path):
    case = Case(tmp_path)
    defined("gradients_clipped_by_norm", one_of=one_of, Case=Case)(case)
    assert case.options["gradient_clip_val"] == 0.01
