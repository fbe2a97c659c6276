"""Messages hold wherever they come: in a run, and at a prompt."""

import pytest
import torch
from toys import mlp

from hookboard import HookboardWarning, capture
from hookboard.hooks import taps


def test_a_hook_that_fails_at_a_prompt_does_not_speak_of_a_run(monkeypatch):
    def fails(*given):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(taps, "tensors_in", fails)
    net = mlp()
    with pytest.warns(HookboardWarning) as said, capture(net, "0"):
        net(torch.randn(2, 4))
    (text,) = [str(w.message) for w in said]
    assert "on purpose" in text
    assert not any(word in text for word in (" run", " fit", "training"))
