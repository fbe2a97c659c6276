"""The gradients of outputs, of inputs and of views are those of autograd, or there is none."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from hookboard.measure.gradients import Switch, edges_of, watch_inputs, watch_output
from hookboard.measure.taps import Taps


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


def passed_back(module, x, on, loss=lambda y: y.abs().square().sum()):
    """What the module passes back to `x`, which must be no leaf."""
    passed = Passed(x, on)
    y = module(x)
    passed.returned(*(y if isinstance(y, tuple) else (y,)))
    loss(y).backward()
    return [torch.tensor(grad, dtype=x.dtype) for grad in passed.seen]


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
    (mine,) = passed_back(module, w * 1, on)
    (true,) = truth_by_backward_hook(module, w * 1)
    torch.testing.assert_close(mine, true, rtol=1e-6, atol=0)


def test_other_uses_of_the_input_are_not_counted(on):
    w = torch.randn(4, 3, requires_grad=True)
    x = w * 1
    linear = nn.Linear(3, 3)
    (mine,) = passed_back(linear, x, on, loss=lambda y: (y + 10 * x).sum())
    torch.testing.assert_close(mine, torch.ones(4, 3) @ linear.weight)


def test_a_way_to_the_input_that_is_older_than_the_call_is_not_the_modules(on):
    x = torch.tensor([0.5], requires_grad=True) * 1
    hidden = x.sin()

    class ReadsHidden(nn.Module):
        def forward(self, x):
            return x * hidden

    (mine,) = passed_back(ReadsHidden(), x, on, loss=lambda y: y.sum())
    assert mine.equal(hidden.detach())


def test_an_input_that_is_a_leaf_has_its_gradient(on):
    x = torch.ones(1, 3, requires_grad=True)
    linear = nn.Linear(3, 1)
    (mine,) = passed_back(linear, x, on, loss=lambda y: y.sum())
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


# Views: if they are changed in place there is no gradient.

# One view, changed in place. By hand the same operation returns a new tensor.
VIEWS = {
    "the whole": lambda x: x.view(-1),
    "flatten": nn.Flatten(0),
    "transpose": lambda x: x.t(),
    "a view of a view": lambda x: x.view(-1)[3:],
    "every second": lambda x: x[:, ::2],
    "the diagonal": lambda x: x.diagonal(),
    "the same row": lambda x: x[:1].expand(3, 6),
    "complex numbers": lambda x: torch.view_as_complex(x.unflatten(-1, (-1, 2))),
}
CHANGES = {
    "relu": (torch.relu_, torch.relu),
    "added to": (lambda x: x.add_(1).relu_(), lambda x: (x + 1).relu()),
}


def base_of(w):
    return w * 1.5


@pytest.fixture
def w():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 6, dtype=torch.float64, generator=generator, requires_grad=True)


def watched(program, w, switch):
    """The gradients that are observed while nobody but the program holds any tensor."""
    seen = []

    def show(tensor):
        watch_output(tensor, observe, switch)
        return tensor

    def observe(grad):
        seen.append(grad.clone())

    program(w, show).backward()
    return seen


def true(program, w):
    """What autograd gives of every tensor that a program without in-place operations shows."""
    shown = []

    def show(tensor):
        shown.append(tensor)
        return tensor

    loss = program(w, show)
    return [grad for grad in torch.autograd.grad(loss, shown, allow_unused=True) if grad is not None]


def assert_same(mine, theirs):
    assert theirs
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("view", VIEWS)
def test_the_gradient_of_a_view_that_nothing_changes_and_of_its_base_is_that_of_autograd(view, w, on):
    def program(w, show):
        return show(VIEWS[view](base_of(w))).abs().square().sum()

    assert_same(watched(program, w, on), true(program, w))
    back = passed_back(VIEWS[view], base_of(w), on)
    assert_same(back, true(lambda w, show: VIEWS[view](show(base_of(w))).abs().square().sum(), w))


@pytest.mark.parametrize("change", CHANGES)
def test_the_gradient_of_a_tensor_is_that_of_its_value_before_it_was_changed(change, w, on):
    in_place, by_hand = CHANGES[change]
    mine = watched(lambda w, show: in_place(show(base_of(w))).square().sum(), w, on)
    assert_same(mine, true(lambda w, show: by_hand(show(base_of(w))).square().sum(), w))


def changed_and_read(w, show):
    return show(base_of(w).view(-1)).relu_().square().sum()


def read_before_and_after_its_change(w, show):
    y = show(base_of(w).view(-1))
    return (y * 2).sum() + y.relu_().square().sum()


def read_before_its_base_is_changed_and_read(w, show):
    x = base_of(w)
    y = show(x.view(-1))
    return (y * 5).sum() + (x.add_(1) * 7).sum()


def read_before_the_buffer_is_written_and_read(w, show):
    rows = torch.zeros(2, 6, dtype=w.dtype)
    rows[0] = w[0] * 1.5
    rows[1] = show(rows[0]) * 2
    return rows.square().sum()


@pytest.mark.parametrize(
    "program",
    [
        changed_and_read,
        read_before_and_after_its_change,
        read_before_its_base_is_changed_and_read,
        read_before_the_buffer_is_written_and_read,
    ],
)
def test_a_view_that_is_changed_has_no_gradient(program, w, on):
    assert watched(program, w, on) == []


def test_a_change_between_two_backward_passes_does_not_count_in_the_first(w, on):
    seen = []
    y = base_of(w).view(-1)
    watch_output(y, lambda grad: seen.append(grad.tolist()), on)
    y.sum().backward(retain_graph=True)
    y.mul_(3).sum().backward()
    assert seen == [[1.0] * 24]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpointed_view_is_seen_once(w, use_reentrant):
    net = nn.Sequential(nn.GELU(), nn.Flatten(0), nn.ReLU())
    seen = []
    taps = Taps({"1": net[1]}, ["grad_output"], lambda site: lambda grad: seen.append(grad.clone()))
    taps.attach()
    taps.active = True
    checkpoint(net, base_of(w), use_reentrant=use_reentrant).sum().backward()
    taps.detach()
    assert [grad.tolist() for grad in seen] == [(w > 0).double().flatten().tolist()]


def test_inside_a_transform_of_torch_func_training_goes_on(on):
    def loss(w):
        y = (w * 1).view(-1)
        watch_output(y, lambda grad: None, on)
        return y.relu_().sum()

    assert torch.func.grad(loss)(torch.ones(2, 2)).tolist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (nn.Flatten(0), lambda y: y.relu_().square().sum()),
        (lambda x: (x[:, :2], x.sum()), lambda y: (y[0] * 3).sum() + y[0].mul_(2).sum() + y[1]),
    ],
    ids=["changed", "two outputs"],
)
def test_what_a_view_that_is_changed_passes_back_is_not_observed(module, loss, w, on):
    assert passed_back(module, base_of(w), on, loss) == []


def test_of_a_module_that_works_in_place_on_a_view_nothing_is_observed(w, on):
    assert passed_back(nn.ReLU(inplace=True), base_of(w).view(-1), on) == []


# Nothing outlives the graph.


@pytest.mark.parametrize("is_back_propagated", [True, False])
@pytest.mark.parametrize("view", ["flatten", "the diagonal"])
def test_no_tensor_outlives_the_step(view, is_back_propagated, w, on):
    net = nn.Sequential(nn.Identity(), nn.Identity())
    taps = Taps(dict(net.named_modules()), ["output", "grad_output", "grad_input"], lambda site: lambda grad: None)
    taps.attach()
    taps.active = True
    x = base_of(w)
    y = net(VIEWS[view](x)).relu_()
    canary = nn.Module()
    y.grad_fn.metadata["canary"] = canary
    alive = [weakref.ref(thing) for thing in (x, y, canary)]
    memory = StorageWeakRef(x.untyped_storage())
    loss = y.sum()
    if is_back_propagated:
        loss.backward()
    taps.end_step()
    del x, y, loss, canary
    gc.collect()
    assert [one() for one in alive] == [None] * 3
    assert memory.expired()


def test_a_hook_keeps_no_memory_while_the_graph_is_alive(w, on):
    y = base_of(w).view(-1)
    watch_output(y, lambda grad: None, on)
    memory = StorageWeakRef(y.untyped_storage())
    loss = y.sum()
    del y
    gc.collect()
    assert memory.expired()
    loss.backward()
