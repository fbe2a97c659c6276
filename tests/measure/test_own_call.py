"""A call of our own: edited as any other, and without a trace."""

import contextlib
import functools
import threading
from collections import OrderedDict

import pytest
import torch
from torch import nn

from hookboard import Edit, Noise, Scale, capture
from hookboard.capturing.attribute import ClassificationTap, TargetLayer, attribute
from hookboard.capturing.edits import Edits
from hookboard.measure.hooked import is_own_call, own_call
from hookboard.measure.taps import Taps

ROLES = ["input", "output", "grad_input", "grad_output"]


def call(net, x):
    """What a forward and a backward pass give: the output and the gradient of the input."""
    x = x.clone().requires_grad_()
    y = net(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    return y.detach(), gradient


def edited(role, rule):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    edits = Edits({"1": net[1]}, role, rule)
    edits.attach()
    return net, edits


class Counts:
    """A rule of a user's that remembers how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, tensor):
        self.calls += 1
        return tensor * self.calls

    def method(self, tensor):
        return self(tensor)


RULES = {
    "noise": lambda: Noise(1.0, seed=2),
    "an object": Counts,
    "a method": lambda: Counts().method,
    "a partial": lambda: functools.partial(Counts().__call__),
}


@pytest.mark.parametrize(
    ("rule", "role"), [*(("noise", role) for role in ROLES), *((rule, "output") for rule in RULES if rule != "noise")]
)
def test_a_rule_goes_on_as_if_there_had_been_no_call_of_our_own(rule, role):
    x = torch.ones(2, 3)

    def run(*, with_own_calls):
        net, _ = edited(role, RULES[rule]())
        results = []
        for _ in range(3):
            results += call(net, x)
            for _ in range(2 if with_own_calls else 0):
                with own_call():
                    call(net, x)
        return results

    for mine, theirs in zip(run(with_own_calls=True), run(with_own_calls=False), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("role", ROLES)
def test_a_call_of_our_own_is_edited_as_the_next_call_would_be(role):
    net, _ = edited(role, Noise(1.0))
    x = torch.ones(2, 3)
    call(net, x)
    with own_call():
        own = call(net, x)
    for mine, theirs in zip(own, call(net, x), strict=True):
        assert torch.equal(mine, theirs)


def test_within_one_call_of_our_own_the_noise_goes_on():
    net, _ = edited("output", Noise(1.0))
    x = torch.ones(2, 3)
    with own_call():
        first, second = net(x), net(x)
    assert not torch.equal(first, second)


def test_an_inner_call_of_our_own_leaves_the_outer_as_it_was():
    net, _ = edited("output", Noise(1.0))
    x = torch.ones(2, 3)
    with own_call():
        net(x)
        expected = net(x)
    with own_call():
        net(x)
        with own_call():
            assert torch.equal(net(x), expected)
        assert torch.equal(net(x), expected)


def test_one_rule_at_two_places_draws_in_turn_as_it_does_otherwise():
    noise = Noise(1.0)
    net = nn.Sequential(nn.Identity(), nn.Identity())
    for k in (0, 1):
        Edits({str(k): net[k]}, "output", noise).attach()
    x = torch.zeros(4)
    with own_call():
        own = net(x)
    assert torch.equal(own, net(x))


@pytest.mark.parametrize("role", ROLES)
def test_a_call_of_our_own_does_not_count_as_a_change(role):
    net, edits = edited(role, Scale(2.0))
    with own_call():
        call(net, torch.ones(2, 3))
    with pytest.raises(LookupError, match="never applied"):
        edits.check_made()


def test_a_rule_that_cannot_be_copied_is_not_used_in_a_call_of_our_own():
    class Refuses(Counts):
        def __deepcopy__(self, memo):
            raise TypeError("no copies")

    net, _ = edited("output", Refuses())
    with pytest.raises(TypeError, match="no copies"), own_call():
        net(torch.ones(2, 3))


@pytest.mark.parametrize("role", ROLES)
def test_taps_observe_nothing_of_a_call_of_our_own(role):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    seen = []
    taps = Taps({"1": net[1]}, [role], lambda site: seen.append)
    taps.attach()
    taps.active = True
    with own_call():
        call(net, torch.ones(2, 3))
    assert seen == []
    call(net, torch.ones(2, 3))
    assert len(seen) == 1


def test_what_a_model_has_watched_in_a_call_of_our_own_is_not_kept():
    with capture(nn.Module()) as seen:
        with own_call():
            tensor = torch.ones(1)
            assert seen.watch(tensor, "x") is tensor
        seen.watch(torch.zeros(1), "x")
    assert seen["x"].output.item() == 0


# What class-activation maps do.


def holder():
    """A model that holds a classifier."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(OrderedDict(model=nn.Sequential(OrderedDict(net=net, head=nn.Linear(4, 5)))))


def attributed(model, tap, pictures):
    layers = [TargetLayer("net.1", model.net[1])]
    return attribute(tap.found, layers, lambda scores: scores.argmax(1), with_gradient=True)


@pytest.mark.parametrize("is_edited_first", [True, False])
@pytest.mark.parametrize(("name", "role"), [("model", "input"), ("model.net.0", "output")])
def test_the_second_call_is_of_the_edited_model_in_whatever_order_they_came(name, role, is_edited_first):
    outer, pictures = holder(), torch.randn(2, 3, 8, 8)
    tap = ClassificationTap(outer, 2)
    edits = Edits({name: outer.get_submodule(name)}, role, Scale(-2.0))
    for one in (edits, tap) if is_edited_first else (tap, edits):
        one.attach()
    scores = outer.model(pictures).detach()
    seen = attributed(outer.model, tap, pictures)
    torch.testing.assert_close(seen.scores, scores)


@pytest.mark.parametrize("role", ["grad_output", "output"])
def test_the_gradient_of_the_second_call_is_that_of_the_edited_layer(role):
    outer, pictures = holder(), torch.randn(2, 3, 8, 8)
    tap, edits = ClassificationTap(outer, 2), Edits({"net.1": outer.model.net[1]}, role, Scale(2.0))
    tap.attach()
    outer(pictures)
    tap.detach()
    plain = attributed(outer.model, tap, pictures)
    edits.attach()
    edited = attributed(outer.model, tap, pictures)
    assert plain.gradient.any()
    torch.testing.assert_close(edited.gradient, plain.gradient * (2 if role == "grad_output" else 1))
    torch.testing.assert_close(edited.activation, plain.activation * (2 if role == "output" else 1))


def test_two_that_look_for_a_classifier_do_not_see_each_others_call():
    outer, pictures = holder(), torch.randn(2, 3, 8, 8)
    first, second = ClassificationTap(outer, 1), ClassificationTap(outer, 2)
    first.attach()
    outer(pictures)
    second.attach()
    attributed(outer.model, first, pictures)
    assert second.found is None
    outer(pictures)
    assert len(second.found.calls) == len(first.found.calls)


@pytest.mark.parametrize("fails", [True, False])
def test_after_the_second_call_the_random_state_and_the_flag_are_as_they_were(fails):
    outer, pictures = holder(), torch.randn(2, 3, 8, 8)
    outer.model.net.append(nn.Dropout(0.5))
    tap = ClassificationTap(outer, 2)
    tap.attach()
    outer(pictures)
    tap.detach()
    if fails:
        outer.model.head.register_forward_pre_hook(lambda *_: 1 / 0)
    before = torch.get_rng_state()
    with contextlib.suppress(ZeroDivisionError):
        attributed(outer.model, tap, pictures)
    assert torch.equal(torch.get_rng_state(), before)
    assert not is_own_call()


def test_training_with_noise_is_the_same_with_class_activation_maps_and_without():
    def trained(*, with_maps):
        outer = holder()
        optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1)
        with capture(outer, "model.head", edit=Edit(Noise(0.1), "model.net.0")):
            for _ in range(4):
                pictures = torch.randn(2, 3, 8, 8, generator=generator)
                tap = ClassificationTap(outer, 2)
                tap.attach()
                optimizer.zero_grad()
                outer(pictures).square().sum().backward()
                tap.detach()
                if with_maps:
                    attributed(outer.model, tap, pictures)
                optimizer.step()
        return list(outer.parameters())

    for mine, theirs in zip(trained(with_maps=True), trained(with_maps=False), strict=True):
        assert torch.equal(mine, theirs)


class InThreads(nn.Module):
    """Calls a module in a thread of its own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        outputs = []
        thread = threading.Thread(target=lambda: outputs.append(self.inner(x)))
        thread.start()
        thread.join()
        return outputs[0]


def test_a_call_of_our_own_in_threads_is_seen_by_no_tap_and_by_no_rule():
    net, rule, seen = InThreads(), Counts(), []
    taps = Taps({"inner": net.inner}, ["output"], lambda site: seen.append)
    taps.attach()
    taps.active = True
    edits = Edits({"inner": net.inner}, "output", rule)
    edits.attach()
    with own_call():
        net(torch.ones(1, 2))
    assert (rule.calls, seen) == (0, [])
    net(torch.ones(1, 2))
    assert (rule.calls, len(seen)) == (1, 1)
    edits.detach()
    taps.detach()
