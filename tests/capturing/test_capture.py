import gc
import weakref
from collections import OrderedDict
from contextlib import suppress
from typing import get_args

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from toys import hooked

from hookboard import capture
from hookboard.capturing.methods import METHODS, Method

ROLES = ("input", "output", "grad_input", "grad_output")


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(first=nn.Linear(4, 8), relu=nn.ReLU(inplace=True), last=nn.Linear(8, 3)))


# The exercises that the project came from, with the numbers that they print.


def test_a_convolution_of_ones_gives_nine_and_eighteen_and_a_gradient_of_a_half():
    """With kernels of ones and of twos, and a loss whose target lies below the output."""
    net = nn.Sequential(OrderedDict(conv1=nn.Conv2d(1, 2, 3), pool=nn.MaxPool2d(2, 2)))
    net.conv1.weight.data[0], net.conv1.weight.data[1] = 1.0, 2.0
    net.conv1.bias.data.zero_()
    with capture(net, roles=ROLES) as seen:
        nn.functional.l1_loss(net(torch.ones(1, 1, 4, 4)), torch.rand(1, 2, 1, 1)).backward()
    assert torch.equal(seen["conv1"].input, torch.ones(1, 1, 4, 4))
    assert seen["conv1"].output.tolist() == [[[[9.0] * 2] * 2, [[18.0] * 2] * 2]]
    assert seen["pool"].output.flatten().tolist() == [9.0, 18.0]
    for channel in (0, 1):
        assert sorted(seen["conv1"].grad_output[0, channel].flatten().tolist()) == [0.0, 0.0, 0.0, 0.5]
    assert torch.equal(seen["pool"].grad_output, torch.full((1, 2, 1, 1), 0.5))
    assert torch.equal(seen["pool"].grad_input, seen["conv1"].grad_output)
    assert torch.equal(net.conv1.weight.grad, torch.full((2, 1, 3, 3), 0.5))


def test_the_gradients_of_intermediate_tensors():
    w, x = torch.tensor([1.0], requires_grad=True), torch.tensor([2.0], requires_grad=True)
    with capture(nn.Module()) as seen:
        a = seen.watch(w + x, "a")
        b = seen.watch(w + 1, "b")
        y = seen.watch(a * b, "y")
        y.backward()
    assert [seen[name].grad_output.item() for name in "aby"] == [2.0, 3.0, 1.0]
    assert [seen[name].output.item() for name in "aby"] == [3.0, 2.0, 6.0]
    assert w.grad.item() == 5.0


# What is kept.


def test_a_copy_is_not_changed_by_an_in_place_operation():
    net = mlp()
    x = torch.randn(2, 4)
    with capture(net, roles=["input", "output"]) as seen:
        net(x)
    assert torch.equal(seen["first"].output, net.first(x))
    assert torch.equal(seen["relu"].input, net.first(x))


@pytest.mark.parametrize(("name", "role"), [("first", "output"), ("relu", "input")])
def test_a_reference_that_was_changed_in_place_is_an_error(name, role):
    net = mlp()
    with capture(net, roles=["input", "output"], copy=False) as seen:
        net(torch.randn(2, 4))
    with pytest.raises(RuntimeError, match=f"the {role} of '{name}' was changed in place .* copy=True"):
        getattr(seen[name], role)


def test_a_reference_stays_in_the_graph():
    net = mlp()
    with capture(net, "last", copy=False) as seen:
        y = net(torch.randn(2, 4))
    assert seen["last"].output is y
    seen["last"].output.sum().backward()
    assert net.first.weight.grad is not None


def test_each_call_of_a_module_is_kept():
    layer = nn.Linear(3, 3)
    net = nn.Sequential(layer)
    x = torch.randn(2, 3)
    with capture(net, roles=ROLES) as seen:
        y = net(net(x).relu())
        y.sum().backward()
    first, second = seen["0"].calls
    assert torch.equal(first.output, layer(x))
    assert torch.equal(second.input, layer(x).relu())
    assert torch.equal(second.grad_output, torch.ones(2, 3))
    assert torch.allclose(first.grad_output, (torch.ones(2, 3) @ layer.weight) * (first.output > 0))


def test_a_call_without_a_gradient_leaves_that_of_the_next_in_its_place():
    net = nn.Sequential(nn.Linear(3, 3))
    with capture(net, roles=["output", "grad_output"]) as seen:
        with torch.no_grad():
            net(torch.randn(2, 3))
        net(torch.randn(5, 3)).sum().backward()
    assert seen["0"].calls[1].grad_output.shape == (5, 3)
    with pytest.raises(LookupError, match="there is no grad_output of '0'"):
        seen["0"].calls[0].grad_output  # noqa: B018  # the property raises


def test_only_the_first_calls_are_kept_where_a_number_is_given():
    net = mlp()
    with capture(net, roles=["output", "grad_output"], calls=2) as seen:
        for size in (1, 2, 3):
            net(torch.randn(size, 4)).sum().backward()
    assert [call.output.shape[0] for call in seen["last"].calls] == [1, 2]
    assert [call.grad_output.shape[0] for call in seen["last"].calls] == [1, 2]


def test_several_tensors_of_a_module_have_their_keys():
    net = nn.Sequential(nn.LSTM(4, 5))
    with capture(net, roles=["output", "grad_output"]) as seen:
        net(torch.randn(3, 4))[0].sum().backward()
    assert {key: tuple(value.shape) for key, value in seen["0"].output.items()} == {
        "0": (3, 5),
        "1/0": (1, 5),
        "1/1": (1, 5),
    }


def test_the_gradients_of_two_backward_passes_add_up():
    net = mlp()
    with capture(net, "last", roles="grad_output") as seen:
        y = net(torch.randn(2, 4))
        y.sum().backward(retain_graph=True)
        (3 * y).sum().backward()
    assert torch.equal(seen["last"].grad_output, torch.full((2, 3), 4.0))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpointed_module_is_kept_once(use_reentrant):
    net = mlp()
    x = torch.randn(2, 4, requires_grad=True)
    with capture(net, "first", roles=["output", "grad_output"]) as seen:
        checkpoint(net, x, use_reentrant=use_reentrant).sum().backward()
    assert len(seen["first"].calls) == 1
    expected = (torch.ones(2, 3) @ net.last.weight) * (net.first(x) > 0)
    assert torch.allclose(seen["first"].grad_output, expected)


def test_a_gradient_whose_call_cannot_be_told_is_an_error():
    layer = nn.Linear(2, 2)
    net = nn.Sequential(layer)
    x = torch.ones(1, 2, requires_grad=True)
    with capture(net, roles=["output", "grad_output"]) as seen:
        (checkpoint(net, x, use_reentrant=True) + net(2 * x)).sum().backward()
    assert len(seen["0"].calls) == 2
    with pytest.raises(LookupError, match="there is no grad_output of '0'"):
        seen["0"].calls[0].grad_output  # noqa: B018  # the property raises


def test_what_is_kept_can_be_moved():
    net = mlp()
    with capture(net, "first", device="meta") as seen:
        net(torch.randn(2, 4))
    assert seen["first"].output.device.type == "meta"


@pytest.mark.compiles
def test_a_compiled_model_is_captured_all_the_same():
    net = torch.compile(mlp(), backend="eager")
    x = torch.randn(2, 4)
    net(x)
    with capture(net, "first") as seen:
        net(x)
    assert torch.equal(seen["first"].output, net.first(x))


# What cannot be had is said.


@pytest.mark.parametrize(
    ("role", "calls", "said"),
    [
        ("input", 1, "the input of 'first' was not captured: roles= has only output"),
        ("output", 0, "there is no output of 'first': the module was not called"),
        ("output", 2, r"was called 2 times: use \.calls\[0\]\.output"),
    ],
)
def test_what_was_not_captured_says_why(role, calls, said):
    net = mlp()
    with capture(net) as seen:
        for _ in range(calls):
            net(torch.randn(1, 4))
    with pytest.raises(LookupError, match=said):
        getattr(seen["first"], role)
    with pytest.raises(KeyError, match="frist"):
        seen["frist"]


def test_a_tensor_may_not_take_the_name_of_a_module():
    with capture(mlp()) as seen, pytest.raises(ValueError, match="'first' is the name of a module"):
        seen.watch(torch.ones(1), "first")


# Nothing stays.


@pytest.mark.parametrize("error", [KeyboardInterrupt, None])
def test_leaving_the_block_leaves_no_hook_and_no_mode(error):
    net = mlp()
    net.relu.eval()
    modes = [module.training for module in net.modules()]
    with suppress(KeyboardInterrupt), capture(net, roles=ROLES):
        net(torch.randn(1, 4))
        if error:
            raise error
    assert not hooked(net)
    assert [module.training for module in net.modules()] == modes


@pytest.mark.parametrize("copy", [True, False])
def test_with_the_result_goes_every_tensor(copy):
    net = mlp()
    with capture(net, roles=ROLES, copy=copy) as seen:
        net(torch.randn(1, 4)).sum().backward()
    calls = [captured.calls[0] for captured in seen.values()]
    alive = [weakref.ref(call.kept["output"][""].tensor) for call in calls]
    assert len(alive) == 3
    del seen, calls
    gc.collect()
    assert [reference() for reference in alive] == [None] * 3


def test_two_blocks_on_one_model_do_not_meet():
    net = mlp()
    with capture(net, "first") as outer:
        net(torch.randn(1, 4))
        with capture(net, ["first", "last"], roles=["output", "grad_output"]) as inner:
            net(torch.randn(2, 4)).sum().backward()
        net(torch.randn(3, 4))
    assert [call.output.shape[0] for call in outer["first"].calls] == [1, 2, 3]
    assert inner["first"].output.shape[0] == 2
    assert not hooked(net)


# To be read.


def test_the_summary_and_the_repr_have_a_line_for_each_tensor():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    net[0].weight.data.fill_(1.0)
    net[0].bias.data.copy_(torch.tensor([0.0, -10.0]))
    with capture(net) as seen:
        net(torch.ones(1, 2))
    assert seen.summary().splitlines() == [
        "name  type    tensor  shape   mean  std    zeros",
        "0     Linear  output  (1, 2)  -3    7.071  0",
        "1     ReLU    output  (1, 2)  1     1.414  0.5",
    ]
    assert repr(seen).splitlines() == ["Captured:", "  0 (Linear): output (1, 2)", "  1 (ReLU): output (1, 2)"]


def test_after_the_block_nothing_is_kept_and_a_missing_backward_pass_is_said():
    net = nn.Sequential(nn.Linear(2, 2))
    with capture(net, roles=["output", "grad_output"]) as seen:
        hidden = seen.watch(net(torch.ones(1, 2)), "hidden")
    hidden.sum().backward()
    net(torch.ones(1, 2))
    assert len(seen["0"].calls) == 1
    for name in ("0", "hidden"):
        with pytest.raises(LookupError, match=r"call backward\(\) before the block ends"):
            _ = seen[name].grad_output


def test_the_type_of_the_method_of_class_activation_maps_names_every_one():
    assert get_args(Method) == tuple(METHODS)
