"""`ranks_differ`: what is said of weights that are apart."""

from dataclasses import replace

import pytest
from health.looks import look

from hookboard.health.judge import Judge
from hookboard.health.look import Apart
from hookboard.health.rules.between_ranks import RANKS_DIFFER


def said(*apart):
    judge = Judge([RANKS_DIFFER], {}, 10)
    return judge.see(replace(look(7, []), apart=apart))


def test_one_look_is_enough_for_an_alarm_and_where_ranks_agree_nothing_is_said():
    assert said() == ()
    (verdict,) = said(Apart("net.0.weight", [([0, 2], 5.912), ([1], 20.31)]))
    assert (verdict.severity, verdict.module, verdict.since) == ("alarm", "net.0", 7)
    assert (
        verdict.evidence
        == "net.0.weight differs between ranks; the weight's RMS is 5.91 on ranks 0 and 2, 20.3 on rank 1"
    )


def test_an_rms_has_as_many_digits_as_tell_ranks_apart_and_one_other_weight_is_named_and_more_are_counted():
    (verdict,) = said(Apart("w", [([0], 1.0), ([1], 1.00001)]), Apart("b", [([0], 1.0), ([1], 2.0)]))
    assert verdict.evidence.endswith("the weight's RMS is 1 on rank 0, 1.00001 on rank 1; b differs too")
    (verdict,) = said(*[Apart("w", [([*range(9)], 1.0), ([9], 2.0)])] * 3)
    assert verdict.evidence.endswith("the weight's RMS is 1 on 9 ranks, 2 on rank 9; 2 other weights differ too")


@pytest.mark.parametrize(("same", "advice"), [(True, "broadcast the weights"), (False, "average the gradients")])
def test_whether_the_gradients_agree_decides_what_to_try(same, advice):
    (verdict,) = said(Apart("w", [([0], 1.0), ([1], 2.0)], same))
    assert verdict.advice.startswith(advice)
