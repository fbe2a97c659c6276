"""Two captures: the first tensor in which they differ by more than rounding."""

import copy

import pytest
import torch
from comparing.nets import INPUTS, ConvNet, Recurrent, Transformer, loss, model, planted
from torch import nn

from hookboard import capture, compare

KINDS = [ConvNet, Recurrent, Transformer]
ROLES = ["input", "output", "grad_input", "grad_output"]


def seen(net, kind=Transformer, roles=("output",)):
    given = INPUTS[kind]
    dtype = next(net.parameters()).dtype
    with capture(net, "**", roles=list(roles)) as captured:
        loss(net(given.to(dtype) if given.is_floating_point() else given).float()).backward()
    net.zero_grad()
    return captured


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_captures_of_the_same_weights_are_equal_up_to_rounding(kind, dtype):
    net = model(kind)
    found = compare(seen(net, kind, ROLES), seen(copy.deepcopy(net).to(dtype), kind, ROLES))
    assert found.differences == ()
    assert str(found).startswith("Equal up to rounding")


def test_the_first_tensor_that_differs_is_told_with_its_numbers():
    net = model(Transformer)
    other = planted(net, lambda n: setattr(n.blocks[1], "act", nn.GELU("tanh")))
    left, right = seen(net), seen(other)
    found = compare(left, right)
    [first] = found.differences
    assert str(first.spot) == "blocks.1.act (output)"
    assert "approximate none against tanh" in first.cause
    one, two = left["blocks.1.act"].output.double(), right["blocks.1.act"].output.double()
    assert first.found.relative == pytest.approx(float((one - two).norm() / one.norm()), rel=1e-6)
    assert first.found.cosine == pytest.approx(float(torch.cosine_similarity(one.flatten(), two.flatten(), dim=0)))
    assert first.found.index == tuple(int(i) for i in torch.unravel_index((one - two).abs().argmax(), one.shape))
    assert "tensors after the first differ too" in str(found)


def test_first_means_in_the_order_of_execution_and_not_of_definition():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(x))

    net = Backwards()
    other = planted(net, lambda n: n.first.bias.add_(1))
    captured = []
    for each in (net, other):
        with capture(each) as one:
            each(torch.ones(2, 4))
        captured.append(one)
    found = compare(*captured)
    assert found.first.module == "first"
    assert "its bias differs" in found.first.cause


def test_a_mistake_between_two_modules_is_told_by_what_the_next_one_is_given():
    net = model(Transformer)
    other = planted(net, lambda n: setattr(n.blocks[1].attn, "scale", 1.0))
    first = compare(seen(net, roles=["input", "output"]), seen(other, roles=["input", "output"])).first
    assert str(first.spot) == "blocks.1.attn.o (input)"
    assert "scale 0.35" in first.cause


class FiveTimes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 5 * gradient


class Amplifies(nn.Module):
    def forward(self, x):
        return FiveTimes.apply(x)


def test_a_gradient_that_differs_alone_is_found():
    net = model(ConvNet)
    net.pool = nn.Sequential(net.pool, nn.Identity())
    other = planted(net, lambda n: n.pool.__setitem__(1, Amplifies()))
    first = compare(seen(net, ConvNet, ROLES), seen(other, ConvNet, ROLES)).first
    assert str(first.spot) in {"pool.0 (gradient)", "pool.1 (input gradient)"}


def test_captures_of_one_model_before_and_after_a_step_do_not_say_that_the_weights_are_the_same():
    net = model(ConvNet)
    before = seen(net, ConvNet, ["input", "output"])
    with torch.no_grad():
        net.conv1.weight.mul_(1.1)
    first = compare(before, seen(net, ConvNet, ["input", "output"])).first
    assert first.module == "conv1"
    assert first.cause.startswith("same inputs; nothing else of the module differs now")


def test_modules_with_other_names_are_matched_in_captures_too():
    net = model(Transformer)
    other = nn.ModuleDict({"net": copy.deepcopy(net)})
    with capture(other, "**") as there:
        other["net"](INPUTS[Transformer])
    names = {"blocks": "net.blocks", "*": "net.*"}
    found = compare(seen(net), there, names=names)
    assert found.first is None
    assert found.names["net.blocks.1.act"] == "blocks.1.act"


def test_another_shape_is_a_difference():
    net = model(ConvNet)
    with capture(net) as left:
        net(INPUTS[ConvNet])
    with capture(net) as right:
        net(INPUTS[ConvNet][:2])
    assert "shape (4, 8, 16, 16) against (2, 8, 16, 16)" in compare(left, right).first.cause


def test_subtracting_captures_says_to_compare_them():
    net = model(ConvNet)
    left = seen(net, ConvNet)
    with pytest.raises(TypeError, match=r"hookboard\.compare\(left, right\)"):
        left - left


def test_a_capture_and_a_model_are_refused():
    net = model(ConvNet)
    with pytest.raises(TypeError, match="a capture can be compared with another capture only"):
        compare(seen(net, ConvNet), net, INPUTS[ConvNet])
