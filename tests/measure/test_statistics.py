import math

import pytest
import torch
from oracle import normal
from ways import measured

from hookboard import Statistic
from hookboard.measure.statistics import own_numbers, plan

NEAR_ZERO = Statistic("near_zero", lambda x: (x.abs() < 0.1).double().mean(), merge="mean")


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


def test_without_a_finite_value_all_but_counts_is_undefined():
    counts = {"nonfinite_count": 1, "nan_count": 1, "inf_count": 0}
    for name, value in measured(torch.tensor([math.nan])).statistics.items():
        assert value == counts[name] if name in counts else math.isnan(value), name


def keeps_and_changes(x):
    return x.data.clamp_(-0.1, 0.1).abs().mean()


def test_a_statistic_that_works_in_place_changes_neither_the_tensor_nor_what_the_next_one_sees():
    tensor = normal(50)
    before = tensor.clone()
    mine = [Statistic("clamped", keeps_and_changes), Statistic("largest", lambda x: x.abs().max(), merge="max")]
    clamped, largest = own_numbers(mine, tensor)
    assert torch.equal(tensor, before)
    assert clamped.item() / 50 == pytest.approx(before.double().clamp(-0.1, 0.1).abs().mean().item())
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
        own_numbers([Statistic("mine", raises(error))], normal(5))
    assert torch.is_grad_enabled()
    assert torch.equal(torch.rand(1), expected)


def test_a_plain_function_in_place_of_a_statistic_says_how_to_wrap_it():
    with pytest.raises(ValueError, match=r"a hookboard.Statistic"):
        plan([lambda x: x.mean()])
