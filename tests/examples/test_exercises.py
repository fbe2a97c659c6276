import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

exercises = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "examples" / "exercises.py")))


@pytest.mark.large
def test_the_feature_map_has_the_shape_of_the_layer():
    assert exercises.feature_map_of_a_vgg_layer().shape == (1, 256, 16, 16)


def test_what_hooks_saw_is_what_forward_returned(capsys):
    assert exercises.inputs_and_outputs_of_every_layer_but_relu6() == 0
    printed = capsys.readouterr().out
    assert "linear_1  Linear  output  (2, 2)  1.2" in printed
    assert "relu      ReLU    output  (2, 1)  3.4" in printed


def test_the_gradient_at_the_intermediate_tensor_is_two():
    assert exercises.gradient_of_an_intermediate_tensor() == 2


def test_the_gradient_is_doubled():
    assert exercises.doubled_gradient() == 2


def test_the_pooling_layer_returns_four_by_four():
    assert exercises.activations_of_a_pooling_layer().shape == (1, 8, 4, 4)
