"""The record: what is written is what is read."""

import json

import numpy as np
import pytest

from hookboard.record import VERSION, HealthRecord, LayerFacts, LayersRecord, health_record, layers_record

LAYERS = LayersRecord(
    "ActivationLogger",
    50,
    (
        LayerFacts("net.0", ("torch.nn.modules.linear.Linear",), (16, 4), {"net.0.weight": (4, 8), "net.0.bias": (4,)}),
        LayerFacts("<img src=x onerror=alert(1)>"),
    ),
)
HEALTH = HealthRecord(
    50,
    "1 alarm in 2 layers.",
    ({"severity": "alarm", "rule": "dead_units", "module": "net.0", "since": 1, "until": None},),
    ("net.0", "net.1"),
    (0, 50, 100),
    {"activation_rms": np.array([[1, np.nan, np.inf], [1e-30, 3.4e38, 0]], np.float32)},
)
NONE = [[], [b""], [b"{}"], [b"[1]"], [b'{"version": 1}'], [b'{"version": "x"}'], [b"\xff"]]


def test_a_record_of_layers_is_read_as_it_was_written():
    assert layers_record(LAYERS.strings()) == LAYERS


def test_a_record_of_health_is_read_as_it_was_written():
    found = health_record(HEALTH.strings())
    assert (found.headline, found.verdicts, found.layers, found.steps) == (
        HEALTH.headline,
        HEALTH.verdicts,
        HEALTH.layers,
        HEALTH.steps,
    )
    np.testing.assert_array_equal(found.values["activation_rms"], HEALTH.values["activation_rms"])


@pytest.mark.parametrize("read", [layers_record, health_record])
@pytest.mark.parametrize("strings", NONE)
def test_what_is_no_record_is_an_error(read, strings):
    with pytest.raises(ValueError, match="record"):
        read(strings)


def test_a_record_whose_columns_are_cut_is_an_error():
    first, column = HEALTH.strings()
    with pytest.raises(ValueError, match="record"):
        health_record([first, column[:-4]])


@pytest.mark.parametrize("read", [layers_record, health_record])
def test_a_record_of_a_later_version_says_that_a_newer_hookboard_wrote_it(read):
    given = json.dumps({"version": VERSION + 1}).encode()
    with pytest.raises(ValueError, match="a newer one wrote it"):
        read([given])
