"""`ParameterLogger` copies weights before a step up to a size; the updates of those beyond it are named."""

import logging

import pytest
from toys import Toy, batches, fit, mlp

from hookboard import ParameterLogger


def updates(readings):
    return {reading.site.name for reading in readings if reading.site.role == "parameter_update"}


def test_updates_are_measured_up_to_the_cap_and_the_others_are_named_once(tmp_path, monkeypatch, caplog):
    # The parameters of `mlp()` have 128, 32, 96 and 12 bytes.
    monkeypatch.setattr("hookboard.callbacks.weights.MOST_COPIED_BYTES", 180)
    callback = ParameterLogger(every_n_steps=1)
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        fit(tmp_path, Toy(mlp()), batches(4, 4, 4), callback)
    assert updates(callback.readings) == {"net.0.weight", "net.0.bias", "net.2.bias"}
    assert {r.site.name for r in callback.readings if r.site.role == "parameter"} == {
        *("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")
    }
    (line,) = [record.getMessage() for record in caplog.records if "are not measured" in record.getMessage()]
    assert "the updates of 1 are not measured (net.2.weight)" in line


@pytest.mark.parametrize("steps", [1, 3])
def test_within_the_cap_all_updates_are_measured(tmp_path, steps):
    callback = ParameterLogger(every_n_steps=1)
    fit(tmp_path, Toy(mlp()), batches(*[4] * steps), callback)
    assert updates(callback.readings) == {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}
