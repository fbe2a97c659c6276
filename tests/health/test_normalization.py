"""Batch norms that lose their gains."""

import math

from health.looks import reading, row
from health.runs import falling, findings, harmed, outputs, run_of

from hookboard.health.rules.scale import ACTIVATION_SCALE, GAIN_LOSS_PER_STEP, GAIN_SHARE_LOST
from hookboard.model.layers import Layer


def norms(count):
    """Batch norms behind each other; what they give is what the latest gain says, unless a test says otherwise."""
    return [
        Layer(
            f"bn{i}", "BatchNorm2d", "norm", (f"bn{i}.weight",), frozenset({f"bn{i}.weight"}), {f"bn{i}.weight": (8,)}
        )
        for i in range(count)
    ]


def gained(*courses, every=10, losses=falling):
    """What is said of norms whose gains have these courses over ten looks; None where they are not measured."""
    given = norms(len(courses))

    def seen(n):
        for norm, course in zip(given, courses, strict=True):
            yield outputs(norm.name, [row(100, 0.1, 0.8) for _ in range(8)])
            if (gain := course(n)) is not None:
                yield reading(norm.weights[0], "parameter_before", [row(8, gain, 0.0, zeros=0 if gain else 8)])

    return findings(ACTIVATION_SCALE, run_of(given, seen, count=10, losses=losses, every=every))


def lost(left=0.95 * GAIN_SHARE_LOST, begin=0.8):
    """Gains that go down to this share from the fourth look to the last."""
    return lambda n: begin * left ** (max(n - 3, 0) / 6)


def kept(n):
    return 0.8


def test_gains_that_go_towards_0_are_an_alarm_since_they_began_to():
    (finding,) = gained(lost(), lost(), kept)
    assert (finding.module, finding.severity, finding.since) == ("bn0", "alarm", 40)
    assert "fell to 0.19 of their initial RMS in 90 steps" in finding.evidence


def test_gains_of_which_more_is_left_or_of_fewer_norms_are_well():
    assert gained(lost(1.05 * GAIN_SHARE_LOST), losses=harmed) == []
    assert gained(lost(), kept, kept, losses=harmed) == []


def test_gains_that_go_down_slowly_are_the_doing_of_a_usual_decay():
    # To 0.19 in as many steps as a decay of 1 % in each step takes, or a few less.
    steps = -math.log(0.95 * GAIN_SHARE_LOST) / GAIN_LOSS_PER_STEP / 9
    assert gained(lost(), every=math.ceil(steps)) == []
    assert [s.module for s in gained(lost(), every=math.floor(steps))] == ["bn0"]


def test_gains_may_come_to_0_exactly_and_begin_there():
    assert [(s.module, s.severity) for s in gained(lambda n: 0.8 if n < 5 else 0.0)] == [("bn0", "alarm")]
    assert gained(lambda n: 0.0) == []
    assert gained(lambda n: 0.0 if n < 2 else 0.8) == []


def test_gains_that_are_not_measured_at_every_look_hide_nothing():
    seldom = lost()
    assert [s.module for s in gained(lost(), lambda n: None if n else seldom(n))] == ["bn0"]
    # A norm that came later has no first gain.
    assert gained(lambda n: seldom(n) if n else None) == []
    assert gained(lambda n: None) == []
