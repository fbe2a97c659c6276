"""Batch norms that do not normalize, and dropout that leaves hardly anything."""

import pytest
from health.looks import reading, row
from health.runs import falling, harmed, linear, noise, nothing, outputs, run_of, symptoms, without_weights

from hookboard.health import Layer
from hookboard.health.rules.scale import ACTIVATION_SCALE


def normed(deviations, gain=0.8, trainable=True, losses=falling):
    names = frozenset({"bn.weight"} if trainable else ())
    norm = Layer("bn", "BatchNorm2d", "norm", ("bn.weight",), names, {"bn.weight": (len(deviations),)})
    read = [
        outputs("conv", noise(len(deviations))),
        outputs("bn", [row(100, 0.1, deviation) for deviation in deviations]),
        reading("bn.weight", "parameter", [row(len(deviations), gain, 0.0)]),
    ]
    return symptoms(ACTIVATION_SCALE, run_of([linear("conv", kind="conv"), norm], lambda n: read, losses=losses))


def test_a_batch_norm_whose_channels_deviate_by_its_gain_is_healthy():
    assert not normed([0.8] * 8, losses=harmed)


@pytest.mark.parametrize(
    ("share", "severity"), [(1.3, None), (1.7, "note"), (0.5, "note"), (3.0, "alarm"), (0.2, "alarm")]
)
def test_a_batch_norm_that_uses_other_statistics_is_found_by_what_it_gives(share, severity):
    found = normed([0.8 * share] * 8)
    assert [(s.module, s.severity) for s in found] == ([("bn", severity)] if severity else [])


def test_a_frozen_batch_norm_is_a_note():
    assert [s.severity for s in normed([0.1] * 8, trainable=False)] == ["note"]


def test_channels_into_which_nothing_comes_do_not_count():
    assert not normed([0.8] * 5 + [0.0] * 3, losses=harmed)
    assert not normed([0.0] * 8, losses=harmed)


@pytest.mark.parametrize(("zeros", "fires"), [(80, False), (95, True), (100, False)])
def test_a_dropout_that_drops_nearly_all_is_worth_a_note(zeros, fires):
    layers = [linear("fc"), without_weights("drop", "dropout", "Dropout")]
    dropped = [row(100, 0.0, 1.0, zeros=zeros) for _ in range(8)] if zeros < 100 else nothing(8)
    found = symptoms(ACTIVATION_SCALE, run_of(layers, lambda n: [outputs("fc", noise(8)), outputs("drop", dropped)]))
    assert [(s.module, s.severity) for s in found] == ([("drop", "note")] if fires else [])
