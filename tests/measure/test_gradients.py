import pytest
import torch
from torch import nn

from hookboard.measure.gradients import Switch, edges_of, watch_inputs, watch_output


@pytest.fixture
def on():
    switch = Switch()
    switch.on = True
    return switch


def seen_by(tensor, switch):
    seen = []
    watch_output(tensor, lambda grad: seen.append(grad.clone()), switch)
    return seen


def test_an_output_that_the_loss_does_not_depend_on_has_none_though_another_of_the_same_operation_has_one(on):
    std, mean = torch.std_mean(torch.ones(3, requires_grad=True) * 2)  # as of an LSTM of cuDNN
    seen, of_view = seen_by(mean, on), seen_by(mean.view(1), on)
    std.backward()
    assert seen == of_view == []


def test_a_view_that_took_no_part_has_no_gradient_although_its_base_has(on):
    w = torch.ones(1, 2, requires_grad=True)
    base = w * 1
    y = base.view(-1)
    seen = seen_by(y, on)
    base.sum().backward()
    assert y.numel() == 2
    assert seen == []


def test_a_hook_on_a_leaf_can_be_removed(on):
    leaf = torch.ones(2, requires_grad=True)
    handle = watch_output(leaf, lambda grad: None, on)
    handle.remove()
    assert not leaf._backward_hooks


class Twice(nn.Module):
    """Uses its input on two edges."""

    def forward(self, x):
        return x.sin() + x.cos()


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Passed:
    """What is seen of the gradients that one call passes back to `x`, which begins now."""

    def __init__(self, x, on):
        self.seen, self.on = [], on
        self.edges, self.since = edges_of([("", x)]), torch.autograd._get_sequence_nr()

    def returned(self, *outputs):
        observers = {"": lambda grad: self.seen.append(grad.tolist())}
        watch_inputs(self.edges, outputs, self.since, observers, self.on)


def input_gradient(module, x, on, loss=lambda y: (y**2).sum()):
    """What the module passes back to `x`, which must be no leaf."""
    passed = Passed(x, on)
    y = module(x)
    passed.returned(y)
    loss(y).backward()
    return [torch.tensor(grad) for grad in passed.seen]


def truth_by_backward_hook(module, x, loss=lambda y: (y**2).sum()):
    """What PyTorch's own full backward hook calls the module's grad_input."""
    seen = []
    handle = module.register_full_backward_hook(lambda m, grad_input, grad_output: seen.append(grad_input[0]))
    loss(module(x)).backward()
    handle.remove()
    return seen


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(3, 2),
        nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 1)),
        Twice(),
        Residual(nn.Linear(3, 3)),
        nn.LayerNorm(3),
        nn.Flatten(),
    ],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3)])
def test_the_gradient_of_an_input_is_that_of_a_full_backward_hook(module, shape, on):
    w = torch.randn(shape, requires_grad=True)
    (mine,) = input_gradient(module, w * 1, on)
    (true,) = truth_by_backward_hook(module, w * 1)
    torch.testing.assert_close(mine, true, rtol=1e-6, atol=0)


def test_other_uses_of_the_input_are_not_counted(on):
    w = torch.randn(4, 3, requires_grad=True)
    x = w * 1
    linear = nn.Linear(3, 3)
    (mine,) = input_gradient(linear, x, on, loss=lambda y: (y + 10 * x).sum())
    torch.testing.assert_close(mine, torch.ones(4, 3) @ linear.weight)


def test_a_way_to_the_input_that_is_older_than_the_call_is_not_the_modules(on):
    x = torch.tensor([0.5], requires_grad=True) * 1
    hidden = x.sin()

    class ReadsHidden(nn.Module):
        def forward(self, x):
            return x * hidden

    (mine,) = input_gradient(ReadsHidden(), x, on, loss=lambda y: y.sum())
    assert mine.equal(hidden.detach())


def test_an_input_that_is_a_leaf_has_its_gradient(on):
    x = torch.ones(1, 3, requires_grad=True)
    linear = nn.Linear(3, 1)
    (mine,) = input_gradient(linear, x, on, loss=lambda y: y.sum())
    assert mine.equal(linear.weight)


def test_an_edge_that_the_loss_does_not_reach_leaves_the_rest(on):
    x = torch.ones(2, requires_grad=True) * 1
    passed = Passed(x, on)
    used, unused = x * 2, x * 3
    passed.returned(used, unused)
    used.sum().backward()
    assert passed.seen == [[2.0, 2.0]]


def test_of_an_input_that_the_output_does_not_depend_on_nothing_is_seen(on):
    passed = Passed(torch.ones(2, requires_grad=True) * 1, on)
    passed.returned(y := torch.ones(2, requires_grad=True) * 3)
    y.sum().backward()
    assert passed.seen == []


def test_parts_of_an_input_gradient_from_two_backward_passes_are_not_added_up(on):
    x = torch.ones(2, requires_grad=True)
    passed = Passed(x, on)
    first, second = 3 * x, -3 * x
    passed.returned(first, second)
    first.sum().backward(retain_graph=True)
    (first + second).sum().backward()
    assert passed.seen == [[3.0, 3.0], [0.0, 0.0]]


def test_an_output_that_is_returned_twice_counts_once_in_the_gradient_of_the_input(on):
    x = torch.ones(2, requires_grad=True)
    passed = Passed(x, on)
    y = 3 * x
    passed.returned(y, y)
    (y + y).sum().backward()
    assert passed.seen == [[6.0, 6.0]]
