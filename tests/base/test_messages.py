"""Messages hold wherever they come: in a run, and at a prompt."""

import io
import linecache
import logging
import warnings

import pytest
import torch
from toys import mlp

from hookboard import GradientLogger, HealthMonitor, HookboardWarning, capture
from hookboard.base import messages
from hookboard.measure import taps
from hookboard.tracing.questions import RULES


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (lambda: HealthMonitor(rules="*_unitz*"), "did you mean 'dead_units'"),
        (lambda: GradientLogger(statistics="update_ratio"), "only ParameterLogger measures 'update_ratio'"),
    ],
)
def test_what_is_called_otherwise_or_elsewhere_is_named(given, meant):
    with pytest.raises(ValueError, match=meant):
        given()


def test_of_many_names_none_is_listed_where_one_is_meant_and_few_where_none_is():
    assert str(messages.unknown("rule", "dead_unit", RULES)) == "unknown rule 'dead_unit'; did you mean 'dead_units'?"
    assert str(messages.unknown("rule", "alarms", RULES)).count(", ") == 11


def test_a_line_reaches_each_handler_that_its_level_asks_for():
    logger, streams = logging.getLogger("lightning.pytorch"), [io.StringIO() for _ in range(2)]
    handlers = [logging.StreamHandler(stream) for stream in streams]
    handlers[1].setLevel(logging.WARNING)
    for handler in handlers:
        logger.addHandler(handler)
    messages.inform("a line")
    messages.alert("an alarm")
    for handler in handlers:
        logger.removeHandler(handler)
    lines = [stream.getvalue() for stream in streams]
    assert lines == ["hookboard: a line\nhookboard: an alarm\n", "hookboard: an alarm\n"]


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


def test_a_warning_shows_its_text_and_no_line_of_our_code():
    with pytest.warns(HookboardWarning) as said:
        messages.warn("something")
    (warning,) = said
    line = warnings.formatwarning(warning.message, warning.category, warning.filename, warning.lineno)
    assert line == "hookboard:1: HookboardWarning: something\n"
    assert not linecache.getline(warning.filename, warning.lineno)


def test_a_filter_that_makes_errors_of_warnings_makes_none_of_ours():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        messages.warn("something")
    assert [(str(w.message), w.category) for w in shown] == [("hookboard: something", HookboardWarning)]
