"""Events of non-finite values: their order, their place from a look, and the table of what was before."""

import math
from dataclasses import replace

from health.looks import look, reading, row

from hookboard.health.rules.numerics import Nonfinite, before_nonfinite
from hookboard.model.sites import Site


def event(step=3, during="forward", **options):
    return Nonfinite("net", during, step, 7, "It broke.", "Fix it.", **options)


def test_the_finding_is_an_alarm_of_its_step_and_batch():
    found = event().finding
    assert (found.module, found.severity, found.since, found.batch_idx) == ("net", "alarm", 3, 7)


def test_events_come_by_step_and_of_one_step_those_with_a_place_first():
    given = [event(4), event(2, is_located=False), event(2, during="backward"), event(2)]
    assert sorted(given, key=lambda one: one.order) == [given[3], given[2], given[1], given[0]]


def test_the_table_has_a_row_for_each_site():
    seen = look(
        5, [reading("a.b", "output", [row(mean=3, deviation=4)]), reading("w", "parameter_before", [row(nonfinite=2)])]
    )
    lines = before_nonfinite(seen).splitlines()
    assert lines[4] == "| a.b | output | 5 | -9 | 15 |  |  |"
    assert lines[5].endswith("| 2 |  |")


def test_a_site_without_a_finite_value_has_no_numbers_and_the_batch_and_its_tensors_are_named_in_words():
    given = [replace(reading("", "input", [row()]), site=Site("", "input", index)) for index in ("", "1")]
    given.append(reading("a", "output", [row(count=0, mean=math.nan, nonfinite=4)]))
    lines = before_nonfinite(look(5, given)).splitlines()
    assert lines[2].startswith("| layer or parameter | values |")
    assert [line.split("|")[1].strip() for line in lines[4:6]] == ["the batch", "tensor 1 of the batch"]
    assert lines[6] == "| a | output |  |  |  | 4 |  |"
