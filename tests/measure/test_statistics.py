import math

import numpy as np
import pytest
import torch
from oracle import normal

from hookboard import Statistic
from hookboard.measure import FORMULAS, WIDTH, Moments, measure, merge_rows, plan

NEAR_ZERO = Statistic("near_zero", lambda x: (x.abs() < 0.1).double().mean(), merge="mean")
NOTHING = Moments(0, 0, 0, 0, 0, 0, 0, 0, math.inf, -math.inf)


def merged(statistic, tensors):
    """Measured on each tensor and merged as the calls of one site."""
    planned = plan(statistic)
    rows = torch.tensor([measure(tensor, planned) for tensor in tensors], dtype=torch.float64)
    return merge_rows(rows, torch.zeros(len(tensors), dtype=torch.long), 1, planned.more)[0, WIDTH:].item()


@pytest.mark.parametrize(
    ("merge", "whole"),
    [
        ("mean", lambda x: x.double().mean().item()),
        ("sum", lambda x: x.double().sum().item()),
        ("min", lambda x: x.double().min().item()),
        ("max", lambda x: x.double().max().item()),
    ],
)
def test_a_statistic_of_ones_own_merges_unequal_calls_by_its_rule(merge, whole):
    parts = [normal(3), normal(500), normal(20, mean=2.0)]
    statistic = Statistic("mine", lambda x: getattr(x.double(), merge)(), merge=merge)
    assert merged(statistic, parts) == pytest.approx(whole(torch.cat(parts)), rel=1e-12)


def test_a_statistic_that_measured_nothing_is_nan():
    nothing = torch.tensor([measure(torch.empty(0), plan(NEAR_ZERO))] * 2, dtype=torch.float64)
    for rows in (nothing, nothing[:0]):
        merged = merge_rows(rows, torch.zeros(len(rows), dtype=torch.long), 1, plan(NEAR_ZERO).more)
        assert merged[:, WIDTH:].isnan().all()


def test_statistics_are_found_by_name_object_and_dotted_path():
    for near_zero in (NEAR_ZERO, f"{__name__}.NEAR_ZERO"):
        found = plan(["mean", near_zero])
        assert found.names == ("mean",)
        assert found.own == (NEAR_ZERO,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("men", "unknown statistic 'men'; did you mean 'mean' or 'min'"),
        ("math.nothing", "'math.nothing' cannot be imported"),
        ("no_such_package.thing", "'no_such_package.thing' cannot be imported"),
        ("math.pi", "'math.pi' is a float, not a hookboard.Statistic"),
    ],
)
def test_an_unknown_statistic_is_an_error_that_helps(given, message):
    with pytest.raises(ValueError, match=message):
        plan([given])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "near zero"}, "letters, digits and underscores"),
        ({"name": "mean"}, "name of a built-in"),
        ({"name": "mine", "merge": "average"}, "unknown merge 'average'.*Valid: mean, sum, min, max"),
    ],
)
def test_a_statistic_that_cannot_be_logged_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        Statistic(measure=torch.mean, **arguments)


@pytest.mark.parametrize(("name", "also_valid"), [("mine", []), ("update_norm", ["update_norm"])])
def test_two_statistics_of_one_name_are_an_error(name, also_valid):
    given = [Statistic(name, torch.mean)] * (1 if also_valid else 2)
    with pytest.raises(ValueError, match=f"statistics=.*'{name}' is the name of two statistics; rename one"):
        plan(given, also_valid)


def test_without_a_finite_value_counts_are_zero_and_the_rest_is_undefined():
    values = plan(list(FORMULAS)).values(NOTHING, [])
    counts = {"nonfinite_count", "nan_count", "inf_count"}
    assert all(value == 0 if name in counts else math.isnan(value) for name, value in values.items())


def test_default_statistics_read_no_sum_of_absolutes():
    assert "abs_sum" not in plan(["mean", "std", "abs_max", "zero_fraction"]).wanted
    assert plan(["nonfinite_count", "max"]).wanted == frozenset()


def keeps_and_changes(x):
    return x.data.clamp_(-0.1, 0.1).abs().mean()


def test_a_statistic_that_works_in_place_changes_neither_the_tensor_nor_what_the_next_one_sees():
    tensor = normal(50)
    before = tensor.clone()
    mine = [Statistic("clamped", keeps_and_changes), Statistic("largest", lambda x: x.abs().max(), merge="max")]
    clamped, largest = measure(tensor, plan(mine))[WIDTH:]
    assert torch.equal(tensor, before)
    assert clamped == pytest.approx(before.double().clamp(-0.1, 0.1).abs().mean().item())
    assert largest == before.abs().max().item()


def raises(error):
    def measure(x):
        torch.rand(3)
        torch.set_grad_enabled(False)
        raise error

    return measure


@pytest.mark.parametrize("error", [RuntimeError("on purpose"), KeyboardInterrupt()])
def test_a_statistic_leaves_random_state_and_grad_mode_as_they_were_and_its_error_goes_through(error):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with pytest.raises(type(error)):
        measure(normal(5), plan(Statistic("mine", raises(error))))
    assert torch.is_grad_enabled()
    assert torch.equal(torch.rand(1), expected)


def test_a_plain_function_in_place_of_a_statistic_says_how_to_wrap_it():
    with pytest.raises(ValueError, match=r"a hookboard.Statistic"):
        plan([lambda x: x.mean()])


def test_the_statistics_of_many_sites_are_those_of_each_to_the_last_bit():
    resolved = plan([*FORMULAS])
    rows = [measure(normal(size, mean=mean), resolved) for size in (1, 2, 999) for mean in (0.0, 1e-20, 3e30)]
    rows += [measure(torch.zeros(9), resolved), list(NOTHING)]
    rows.append(measure(torch.tensor([math.nan, math.inf]), resolved))
    found = resolved.table(np.array(rows, dtype=np.float64), *[[None] * len(rows)] * 3)
    for name, column in zip(found.names, found.values.T, strict=True):
        with np.errstate(all="ignore"):
            each = [FORMULAS[name].value(Moments(*np.array([row]).T)) for row in rows]
        assert column.tobytes() == np.array(each, dtype=np.float64).tobytes(), name
