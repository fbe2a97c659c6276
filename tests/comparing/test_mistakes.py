"""Each mistake of porting a model is found in the very module that has it, and its cause is named."""

import pytest
import torch
from comparing.nets import INPUTS, ConvNet, Recurrent, Transformer, loss, model, planted
from torch import nn

from hookboard import compare


def swapped(module, one, other):
    """Exchange two modules inside another."""
    first, second = getattr(module, one), getattr(module, other)
    setattr(module, one, second)
    setattr(module, other, first)


def untied(net):
    net.head.weight = nn.Parameter(net.head.weight.clone())


def changed(tensor, values):
    tensor.copy_(values.clone())


MISTAKES = {
    # name: kind, whether it trains, change, the module and part that are named, words of the cause
    "epsilon of a norm": (Transformer, False, lambda n: setattr(n.blocks[1].norm1, "eps", 1e-6), "blocks.1.norm1 (output)", "eps 1e-05 vs. 1e-06"),
    "q and k exchanged": (Transformer, False, lambda n: swapped(n.blocks[2].attn, "q", "k"), "blocks.2.attn.q (output)", "its weight differs"),
    "GELU by tanh": (Transformer, False, lambda n: setattr(n.blocks[1], "act", nn.GELU("tanh")), "blocks.1.act (output)", "approximate none vs. tanh"),
    "no scale of the scores": (Transformer, False, lambda n: setattr(n.blocks[0].attn, "scale", 1.0), "blocks.0.attn.o (input)", "scale 0.35"),
    "a scaled residual": (Transformer, False, lambda n: setattr(n.blocks[1], "residual", 0.9), "blocks.1 (output)", "residual 1.0 vs. 0.9"),
    "a layer skipped": (Transformer, False, lambda n: setattr(n.blocks[1], "forward", lambda x: x), "blocks.1 (output)", "did not run in the right model"),
    "a missing bias": (Transformer, False, lambda n: setattr(n.blocks[0], "down", nn.Linear(32, 16, bias=False)), "blocks.0.down (output)", "its weight differs"),
    "tied weights untied": (Transformer, False, untied, "head (weight weight)", "it is tied to words.weight in the left model"),
    "dropout left on": (Transformer, False, lambda n: n.blocks[1].drop.train(), "blocks.1.drop (output)", "evaluation mode vs. training mode"),
    "another rate of dropout": (Transformer, True, lambda n: setattr(n.blocks[1].drop, "p", 0.2), "blocks.1.drop (output)", "p 0.1 vs. 0.2"),
    "padding": (ConvNet, False, lambda n: setattr(n.conv2, "padding_mode", "circular") or setattr(n.conv2, "_reversed_padding_repeated_twice", [1, 1, 1, 1]), "conv2 (output)", "padding_mode zeros vs. circular"),
    "mean over the wrong axis": (ConvNet, False, lambda n: setattr(n, "over", (1, 2)), "head (input)", "over (2, 3) vs. (1, 2)"),
    "running statistics": (ConvNet, False, lambda n: n.norm2.running_var.mul_(1.1), "norm2 (output)", "its running_var differs"),
    "momentum": (ConvNet, True, lambda n: setattr(n.norm1, "momentum", 0.01), "norm1 (weight running_mean)", "momentum 0.1 vs. 0.01"),
    "a norm in evaluation mode": (ConvNet, True, lambda n: n.norm1.eval(), "norm1 (output)", "training mode vs. evaluation mode"),
    "average in place of maximum": (ConvNet, False, lambda n: setattr(n, "pool", nn.AvgPool2d(2)), "pool (output)", "MaxPool2d vs. AvgPool2d"),
    "a branch detached": (ConvNet, False, lambda n: setattr(n, "detaches", True), "norm2 (gradient)", "look for detach()"),
    "a frozen weight": (ConvNet, False, lambda n: n.conv2.weight.requires_grad_(False), "conv2 (gradient weight)", "no gradient in the right model"),
    "gates in another order": (Recurrent, False, lambda n: changed(n.lstm.weight_ih_l0, n.lstm.weight_ih_l0.roll(8, 0)), "lstm (output", "its weight_ih_l0 differs"),
    "another step of the sequence": (Recurrent, False, lambda n: setattr(n, "last", 0), "head (input)", "last -1 vs. 0"),
    "time and batch exchanged": (Recurrent, False, lambda n: setattr(n.lstm, "batch_first", False), "lstm (output", "batch_first True vs. False"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_the_first_difference_is_the_mistake(name):
    kind, training, change, where, cause = MISTAKES[name]
    net = model(kind, training=training)
    found = compare(net, planted(net, change), INPUTS[kind], loss=loss)
    assert found.first is not None
    assert str(found.first.spot).startswith(where)
    assert cause in found.first.cause


@pytest.mark.parametrize(("kind", "training"), sorted({each[:2] for each in MISTAKES.values()}, key=str))
def test_a_model_without_a_mistake_has_no_difference(kind, training):
    net = model(kind, training=training)
    assert str(compare(net, planted(net, lambda n: None), INPUTS[kind], loss=loss)).startswith("Equal up to rounding")


PAIRS = [
    ("q and k exchanged", "no scale of the scores"),
    ("running statistics", "mean over the wrong axis"),
]


@pytest.mark.parametrize("names", PAIRS)
def test_of_two_mistakes_both_are_found_and_nothing_else(names):
    kind, training, *_ = MISTAKES[names[0]]
    net = model(kind, training=training)

    def both(other):
        for name in names:
            MISTAKES[name][2](other)

    found = compare(net, planted(net, both), INPUTS[kind], loss=loss)
    wanted = [MISTAKES[name][3] for name in names]
    spots = [str(one.spot) for one in found.differences]
    assert all(any(spot.startswith(where) for spot in spots) for where in wanted)
    assert {one.module for one in found.differences} <= {where.partition(" ")[0] for where in wanted} | {
        "blocks.2.attn.k"
    }


def test_the_numbers_of_a_difference_are_those_of_the_tensors():
    net = model(Transformer)
    other = planted(net, MISTAKES["GELU by tanh"][2])
    first = compare(net, other, INPUTS[Transformer]).first
    seen = {}
    net.blocks[1].act.register_forward_hook(lambda module, args, output: seen.update(given=args[0], gave=output))
    with torch.no_grad():
        net(INPUTS[Transformer])
    left, right = seen["gave"].double(), other.blocks[1].act(seen["given"]).detach().double()
    assert first.found.relative == pytest.approx(float((left - right).norm() / left.norm()), rel=1e-6)
    assert first.found.cosine == pytest.approx(float(torch.cosine_similarity(left.flatten(), right.flatten(), dim=0)))
    worst = (left - right).abs().argmax()
    assert first.found.index == tuple(int(i) for i in torch.unravel_index(worst, left.shape))
    assert (first.found.left, first.found.right) == (float(left.flatten()[worst]), float(right.flatten()[worst]))


def test_gradients_are_compared_once_the_forward_pass_is_the_same():
    net = model(ConvNet)

    def both(other):
        other.detaches, other.pool = True, nn.AvgPool2d(2)

    found = compare(net, planted(net, both), INPUTS[ConvNet], loss=loss)
    assert [one.module for one in found.differences] == ["pool"]
    assert found.notes[-1] == "gradients are compared once nothing differs in the forward pass"
