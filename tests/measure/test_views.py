"""Views that are changed in place: the gradient is that of the same computation without in-place operations."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from hookboard.measure.gradients import Switch, watch_output
from hookboard.measure.input_gradients import InputGradients, edges_of
from hookboard.measure.taps import Taps
from hookboard.model.sites import Site

# One view, changed in place. By hand the same operation returns a new tensor.
VIEWS = {
    "the whole": lambda x: x.view(-1),
    "flatten": nn.Flatten(0),
    "transpose": lambda x: x.t(),
    "a reshape that copies": lambda x: x.t().reshape(-1),
    "a view of a view": lambda x: x.view(-1)[3:],
    "every second": lambda x: x[:, ::2],
    "the diagonal": lambda x: x.diagonal(),
    "itself": nn.Identity(),
}
CHANGES = {
    "relu": (torch.relu_, torch.relu),
    "dropout": (lambda x: x.mul_(half(x)), lambda x: x * half(x)),
    "added to": (lambda x: x.add_(1).relu_(), lambda x: (x + 1).relu()),
}


def half(x):
    return torch.arange(x.numel()).view(x.shape) % 2


def base_of(w):
    return w * 1.5


@pytest.fixture
def on():
    switch = Switch()
    switch.on = True
    return switch


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


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("view", VIEWS)
def test_the_gradient_of_a_view_is_that_of_its_value_before_it_was_changed(view, change, w, on):
    in_place, by_hand = CHANGES[change]
    mine = watched(lambda w, show: in_place(show(VIEWS[view](base_of(w)))).square().sum(), w, on)
    theirs = true(lambda w, show: by_hand(show(VIEWS[view](base_of(w)))).square().sum(), w)
    assert_same(mine, theirs)


@pytest.mark.parametrize("view", VIEWS)
def test_the_gradient_of_a_view_that_nothing_changes_is_that_of_autograd(view, w, on):
    def program(w, show):
        return show(VIEWS[view](base_of(w))).square().sum()

    assert_same(watched(program, w, on), true(program, w))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_every_type_of_numbers_is_seen(dtype, on):
    w = torch.full((2, 3), 2.0, dtype=dtype, requires_grad=True)
    mine = watched(lambda w, show: show(base_of(w).view(-1)).mul_(3).sum().abs(), w, on)
    assert [grad.tolist() for grad in mine] == [[3.0] * 6]
    assert mine[0].dtype is dtype


PAIRS = {
    "the whole": lambda x: torch.view_as_complex(x.unflatten(-1, (-1, 2))),
    "a part": lambda x: torch.view_as_complex(x.unflatten(-1, (-1, 2)))[1:, 1:],
    "every second": lambda x: torch.view_as_complex(x.unflatten(-1, (-1, 2)))[:, ::2],
    "and back": lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))))[1:],
}


@pytest.mark.parametrize("view", PAIRS)
def test_pairs_seen_as_complex_numbers_have_their_gradient(view, w, on):
    mine = watched(lambda w, show: show(PAIRS[view](base_of(w))).mul_(3).abs().square().sum(), w, on)
    assert_same(mine, true(lambda w, show: (show(PAIRS[view](base_of(w))) * 3).abs().square().sum(), w))


@pytest.mark.parametrize("view", PAIRS)
def test_pairs_seen_as_complex_numbers_pass_back_their_gradient(view, w, on):
    mine = passed_back(PAIRS[view], base_of(w), lambda y: y.mul_(3).abs(), on)
    assert_same(mine, true(lambda w, show: (PAIRS[view](show(base_of(w))) * 3).abs().square().sum(), w))


def test_complex_numbers_seen_as_pairs_pass_back_their_gradient(on):
    w = torch.randn(3, 2, dtype=torch.complex128, requires_grad=True)
    mine = passed_back(lambda x: torch.view_as_real(x)[1:], w * 1, lambda y: y.mul_(3), on)
    assert_same(mine, true(lambda w, show: (torch.view_as_real(show(w * 1))[1:] * 3).square().sum(), w))


def test_a_view_on_the_meta_device_is_no_fault(on):
    w = torch.ones(2, 3, device="meta", requires_grad=True)
    assert watched(lambda w, show: show((w * 1).view(-1)).relu_().sum(), w, on)[0].shape == (6,)


def unclear(program, w, switch):
    """What is observed, and the causes of what is not."""
    seen, causes = [], []

    def show(tensor):
        watch_output(tensor, lambda grad: seen.append(grad.tolist()), switch, causes.append)
        return tensor

    program(w, show).backward()
    return seen, causes


def read_before_and_after_its_change(w, show):
    y = show(base_of(w).view(-1))
    return (y * 2).sum() + y.relu_().square().sum()


def part_read_before_and_after_its_change(w, show):
    y = show(base_of(w)[:, :2])
    return (y * 3).sum() + y.mul_(2).sum()


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
        read_before_and_after_its_change,
        part_read_before_and_after_its_change,
        read_before_its_base_is_changed_and_read,
        read_before_the_buffer_is_written_and_read,
    ],
)
def test_a_gradient_that_cannot_be_told_apart_is_not_observed_but_explained(program, w, on):
    seen, causes = unclear(program, w, on)
    assert seen == []
    assert len(causes) == 1
    assert "cannot be separated" in causes[0]


def test_tiny_gradients_are_told_apart_too(w, on):
    seen, causes = unclear(lambda w, show: part_read_before_and_after_its_change(w, show) * 1e-12, w, on)
    assert seen == []
    assert len(causes) == 1


@pytest.mark.parametrize(
    ("view", "cause"), [(lambda x: x.conj(), "view that was modified in place"), (lambda x: x * 2, None)]
)
def test_a_view_of_which_the_part_is_unknown_has_a_true_cause(view, cause, on):
    w = torch.ones(2, dtype=torch.complex128, requires_grad=True)
    seen, causes = unclear(lambda w, show: show(view(w * 1)).mul_(3).sum().abs(), w, on)
    assert (len(seen), len(causes)) == ((0, 1) if cause else (1, 0))
    assert all(cause in each for each in causes)


def test_the_base_counts_where_it_is_read_afterwards(w, on):
    def in_place(w, show):
        x = base_of(w)
        show(x[1:3]).relu_()
        return x.square().sum()

    def by_hand(w, show):
        x = base_of(w)
        return torch.cat([x[:1], show(x[1:3]).relu(), x[3:]]).square().sum()

    assert_same(watched(in_place, w, on), true(by_hand, w))


def test_two_parts_of_one_base_have_each_its_own_gradient(w, on):
    def in_place(w, show):
        x = base_of(w)
        a, b = show(x[:2]), show(x[2:])
        return (a.mul_(2) * half(a)).sum() + b.mul_(3).sum()

    def by_hand(w, show):
        x = base_of(w)
        a, b = show(x[:2]), show(x[2:])
        return (a * 2 * half(a)).sum() + (b * 3).sum()

    assert_same(watched(in_place, w, on), true(by_hand, w))


def test_parts_that_are_written_later_do_not_count(w, on):
    def in_place(w, show):
        rows = torch.zeros(4, 6, dtype=w.dtype)
        rows[0] = w[0] * 1.5
        for k in range(1, 4):
            rows[k] = show(rows[k - 1]) * (k + 0.5)
        return rows[-1].square().sum()

    def by_hand(w, show):
        rows = [w[0] * 1.5]
        for k in range(1, 4):
            rows.append(show(rows[-1] * 1) * (k + 0.5))
        return rows[-1].square().sum()

    assert_same(watched(in_place, w, on)[::-1], true(by_hand, w))


def test_a_view_of_which_elements_share_an_address_is_seen_through_its_own_node_alone(w, on):
    def program(w, show):
        x = base_of(w)
        y = show(x[:1].expand(3, 6)) * w[1:]
        return y.sum() + x.sum()

    def in_place(w, show):
        x = base_of(w)
        y = show(x[:1].expand(3, 6)).sum()
        return y + x.mul_(2).sum()

    assert_same(watched(program, w, on), true(program, w))
    assert [grad.tolist() for grad in watched(in_place, w, on)] == [[[1.0] * 6] * 3]


def test_a_change_of_the_base_counts_as_one_of_the_view_of_the_whole(w, on):
    def in_place(w, show):
        x = base_of(w)
        show(x.view(-1))
        return x.relu_().sum()

    mine = watched(in_place, w, on)
    assert [grad.tolist() for grad in mine] == [(w > 0).double().flatten().tolist()]


def test_a_change_between_two_backward_passes_does_not_count_in_the_first(w, on):
    seen = []
    y = base_of(w).view(-1)
    watch_output(y, lambda grad: seen.append(grad.tolist()), on)
    y.sum().backward(retain_graph=True)
    y.mul_(3).sum().backward()
    assert seen == [[1.0] * 24, [3.0] * 24]


class Sites(nn.Module):
    """Calls its modules one after the other, or all on one tensor."""

    def __init__(self, *parts, beside=False):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.beside = beside

    def forward(self, x):
        if not self.beside:
            for part in self.parts:
                x = part(x)
            return x
        first, *_ = [part(x) for part in self.parts]
        return first


def gradients_at(net, names, x, change=torch.relu_, roles=("grad_output",)):
    seen = {}
    modules = {name: net.get_submodule(name) for name in names}
    taps = Taps(modules, roles, lambda site: lambda grad: seen.setdefault(site, []).append(grad.clone()))
    taps.attach()
    taps.active = True
    loss = change(net(x)).square().sum()
    del x
    loss.backward()
    taps.detach()
    return seen


def test_a_module_that_views_one_tensor_twice_is_counted_for_each_view(w):
    flatten = nn.Flatten(0)
    seen = gradients_at(Sites(flatten, flatten, beside=True), ["parts.0"], base_of(w))
    (expected,) = true(lambda w, show: show(base_of(w).view(-1)).relu().square().sum(), w)
    for mine in seen[Site("parts.0", "grad_output")]:
        torch.testing.assert_close(mine, expected)
    assert len(seen[Site("parts.0", "grad_output")]) == 2


@pytest.mark.parametrize("change", [torch.relu_, torch.relu])
def test_a_module_that_views_its_own_view_is_counted_twice(w, change):
    flatten = nn.Flatten(1)
    seen = gradients_at(Sites(flatten, flatten), ["parts.0"], base_of(w).view(2, 3, 4), change)
    assert len(seen[Site("parts.0", "grad_output")]) == 2


def test_modules_that_view_each_others_view_see_the_gradient_each(w):
    net = Sites(nn.Flatten(0), nn.Unflatten(0, (2, 12)), nn.Identity())
    seen = gradients_at(net, ["parts.0", "parts.1", "parts.2"], base_of(w))
    (expected,) = true(lambda w, show: show(base_of(w)).relu().square().sum(), w)
    assert len(seen) == 3
    for (grad,) in seen.values():
        torch.testing.assert_close(grad.flatten(), expected.flatten())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpointed_view_is_seen_once(w, use_reentrant):
    net = nn.Sequential(nn.GELU(), nn.Flatten(0), nn.ReLU(inplace=True))
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


# What a module passes back.


def passed_back(module, x, after, on):
    seen = []
    edges, since = edges_of([("", x)]), torch.autograd._get_sequence_nr()
    y = module(x)
    gradients = InputGradients(edges, [y], since, {"": lambda grad: seen.append(grad.clone())}, on)
    assert gradients.unreached == []
    after(y).square().sum().backward()
    gradients.settle()
    return seen


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_is_changed_afterwards_passes_back_its_gradient(view, change, w, on):
    in_place, by_hand = CHANGES[change]
    mine = passed_back(VIEWS[view], base_of(w), in_place, on)
    theirs = true(lambda w, show: by_hand(VIEWS[view](show(base_of(w)))).square().sum(), w)
    assert_same(mine, theirs)


@pytest.mark.parametrize("view", VIEWS)
def test_an_in_place_module_on_a_view_passes_back_the_gradient_of_what_it_took(view, w, on):
    mine = passed_back(nn.ReLU(inplace=True), VIEWS[view](base_of(w)), lambda y: y, on)
    theirs = true(lambda w, show: show(VIEWS[view](base_of(w))).relu().square().sum(), w)
    assert_same(mine, theirs)


def test_a_gradient_of_an_input_that_cannot_be_told_apart_is_not_observed_but_explained(w, on):
    seen, causes = [], []
    x = base_of(w)
    edges, since = edges_of([("", x)]), torch.autograd._get_sequence_nr()
    y = x[:, :2]
    gradients = InputGradients(edges, [y, x.sum()], since, {"": seen.append}, on, causes.append)
    ((y * 3).sum() + y.mul_(2).sum()).backward()
    gradients.settle()
    assert seen == []
    assert len(causes) == 1
    assert "cannot be separated" in causes[0]


# Nothing outlives the graph.


@pytest.mark.parametrize("is_back_propagated", [True, False])
@pytest.mark.parametrize("view", VIEWS)
def test_no_tensor_outlives_the_step(view, is_back_propagated, w, on):
    net = Sites(nn.Identity(), nn.Identity())
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
    taps.settle()
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
