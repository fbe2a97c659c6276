import pytest
import torch
from oracle import assert_true, normal

from hookboard import Statistic
from hookboard.measure.recorder import Recorder
from hookboard.measure.rows import RowBuffer
from hookboard.measure.statistics import FORMULAS, plan
from hookboard.model.sites import Site

A, B = Site("a", "output"), Site("b", "output")


def recorder(*statistics, **options):
    return Recorder(plan(statistics or tuple(FORMULAS)), torch.device("cpu"), **options)


def test_all_tensors_of_a_site_make_one_reading():
    mine = recorder()
    parts = [normal(3, 4), normal(500), normal(7, mean=9.0)]
    for part in parts:
        mine.open(A)(part)
    mine.open(B)(normal(10))
    readings = {reading.site: reading for reading in mine.flush().values()}
    assert_true(readings[A].statistics, parts)
    assert_true(readings[B].statistics, [normal(10)])


def test_a_flush_forgets_what_it_returned():
    mine = recorder(histogram=True)
    mine.open(A)(normal(10))
    mine.flush()
    assert mine.flush() == {}
    mine.open(A)(normal(20))
    (reading,) = mine.flush().values()
    assert_true(reading.statistics, [normal(20)])
    assert reading.histogram.counts.sum() == 20


def test_bins_of_a_step_that_is_read_late_are_not_those_of_the_next():
    mine = recorder(histogram=True)
    mine.open(A)(normal(10))
    first = mine.send()
    mine.open(A)(normal(20))
    second = mine.send()
    mine.open(A)(normal(40))
    (reading,), (next_one,) = (sent().values() for sent in (first, second))
    (last,) = mine.flush().values()
    assert [each.histogram.counts.sum() for each in (reading, next_one, last)] == [10, 20, 40]


def test_a_new_site_does_not_look_through_the_rows_of_the_others(monkeypatch):
    """With 10,000 layers that took longer than all else in the first step."""
    mine, looked = recorder(), []
    monkeypatch.setattr(RowBuffer, "indices", property(lambda rows: looked.append(rows) or set()))
    for name in "abc":
        mine.open(Site(name, "output"))(normal(4))
    assert not looked


def test_numbers_that_come_along_are_those_that_were_given():
    given = torch.tensor([0.1, float("nan"), -3e38], dtype=torch.float64)
    readings = recorder().send(along=given)()
    assert str(readings.along) == str(given.tolist())
    assert readings == {}


def test_a_statistic_of_ones_own_stands_beside_the_built_in_ones():
    near_zero = Statistic("near_zero", lambda x: (x.abs() < 0.5).double().mean(), merge="mean")
    mine = recorder("max", near_zero)
    parts = [normal(10), normal(1000)]
    for part in parts:
        mine.open(A)(part)
    (reading,) = mine.flush().values()
    whole = torch.cat(parts)
    assert reading.statistics.keys() == {"max", "near_zero"}
    assert abs(reading.statistics["near_zero"] - (whole.abs() < 0.5).double().mean().item()) < 1e-12


def test_a_graph_is_neither_built_nor_kept():
    mine = recorder()
    x = torch.ones(3, requires_grad=True)
    mine.open(A)(x * 2)
    assert not mine._main.rows.rows(mine._main.rows.take(), 1).requires_grad


class Alone:
    """The ranks of a run with one process, which counts how often they agree."""

    size, rank, agreements = 1, 0, 0

    def sum(self, numbers):
        return numbers

    max = sum

    def union(self, mine):
        self.agreements += 1
        return list(dict.fromkeys(mine))


def test_ranks_agree_on_the_sites_only_where_one_is_new():
    ranks = Alone()
    mine = recorder(ranks=ranks, histogram=True)
    agreements = []
    for sites in ([A], [A], [A, B], [B], []):
        for site in sites:
            mine.open(site)(normal(10))
        assert [reading.site for reading in mine.flush().values()] == sites
        agreements.append(ranks.agreements)
    assert agreements == [1, 1, 2, 2, 2]


def test_a_default_device_of_the_user_does_not_reach_the_rows():
    values = normal(10)
    with torch.device("meta"):
        mine = recorder()
        mine.open(A)(values)
        (reading,) = mine.flush().values()
    assert_true(reading.statistics, [values])


def test_tensors_that_are_given_together_are_measured_like_single_ones():
    mine, single = recorder(), recorder()
    given = {
        Site("a", "parameter"): normal(10, 4),
        Site("b", "parameter"): normal(100, 4)[::3],
        Site("c", "parameter"): normal(5, dtype=torch.float64),
        Site("d", "parameter"): normal(4, 5).t(),
    }
    mine.observe_all((site, tensor, None) for site, tensor in given.items())
    for site, tensor in given.items():
        single.open(site)(tensor)
    for reading, other in zip(mine.flush().values(), single.flush().values(), strict=True):
        assert reading.site == other.site
        assert_true(reading.statistics, [given[reading.site]])


def test_a_difference_is_taken_in_float32_at_least():
    mine = recorder()
    after, before = (normal(50, mean=mean, dtype=torch.bfloat16) for mean in (1.0, 1.5))
    mine.observe_all([(A, after, before), (B, after.float(), before.float())])
    for reading in mine.flush().values():
        assert_true(reading.statistics, [after.float() - before.float()])


def test_a_site_that_fails_leaves_those_that_are_given_with_it():
    mine = recorder()
    good, bad = normal(10), torch.empty(3, device="meta")
    with pytest.warns(UserWarning, match="output of 'b'"):
        mine.observe_all([(A, good, None), (B, bad, None)])
    mine.observe_all([(B, bad, None)])
    readings = {reading.site: reading for reading in mine.flush().values()}
    assert_true(readings[A].statistics, [good])
    assert B not in readings
