"""`ParameterLogger` copies weights before a step up to a size; the updates of those beyond it are named."""

import pytest
from toys import Toy, batches, fit, mlp

from hookboard import HookboardWarning, ParameterLogger


def test_updates_are_measured_up_to_the_cap_and_the_others_are_named_once(tmp_path, monkeypatch):
    # The parameters of `mlp()` have 128, 32, 96 and 12 bytes.
    monkeypatch.setattr("hookboard.callbacks.measurement_state.MOST_COPIED_BYTES", 180)
    callback = ParameterLogger(every_n_steps=1)
    with pytest.warns(HookboardWarning, match="net.2.weight: parameter_update: copies of all parameters") as said:
        fit(tmp_path, Toy(mlp()), batches(4, 4, 4), callback)
    measured = {(reading.site.role, reading.site.name) for reading in callback.readings}
    names = {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}
    assert {name for role, name in measured if role == "parameter"} == names
    assert {name for role, name in measured if role == "parameter_update"} == names - {"net.2.weight"}
    assert sum("1 of 8 sites had nothing to measure" in str(one.message) for one in said) == 1
