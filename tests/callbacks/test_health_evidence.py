"""The numbers that verdicts quote, each against float64 over the raw tensors of the step that was looked at last."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from attending import Predicts, counting, heads_of, language_model, recorded_calls
from callbacks.course import Course, looks_of, of_layer, ratio, shortened
from callbacks.user_program import Does
from recorded import CROSS_ENTROPY, EVERY, Recorded, classes, linear, numbers, rms, said, sized, verdict_of
from torch import nn
from toys import fit

from hookboard import HealthMonitor, watch


def test_as_many_units_are_said_to_be_dead_as_gave_only_0(tmp_path):
    net = sized(linear(8, 16), nn.ReLU, linear(16, 3))
    net[0].bias.data[:13] = -50.0
    model = Recorded(net, CROSS_ENTROPY)
    bias = net[0].bias.detach().double().mean().item()
    verdict = verdict_of(tmp_path, model, classes(), "dead_units")
    dead, units = numbers("# of # units of net.1 (ReLU) have been 0", verdict.evidence)
    assert (dead, units) == ((model.outputs["net.1"] == 0).all(0).sum(), 16)
    assert numbers("biases of this layer to 0, because their mean is #", verdict.advice) == [shortened(bias, 3)]


def test_how_far_the_step_moved_the_weights_of_units_that_died_of_it(tmp_path):
    net = sized(linear(8, 16), nn.ReLU, linear(16, 3))
    model = Course(net, rate=1e-2)
    model.loss = lambda out, y: CROSS_ENTROPY(out, y) + (1000 * net[0].bias.sum() if len(model.losses) == 29 else 0)
    (share,) = numbers(
        "a single step had changed these weights by #%.", verdict_of(tmp_path, model, classes(), "dead_units").advice
    )
    assert share == round(100 * ratio(model, 29, 0))


def test_how_far_a_step_moves_the_weights_that_moves_them_too_little(tmp_path):
    net = sized(linear(8, 16), nn.ReLU, linear(16, 16), nn.ReLU, linear(16, 3))
    model = Course(net, CROSS_ENTROPY, rate=1e-7, optimizer=torch.optim.Adam)
    verdict = verdict_of(tmp_path, model, classes(), "update_too_small")
    evidence = verdict.evidence
    (moved,) = numbers("the update-to-weight ratio is #", evidence)
    assert numbers("usual), at a learning rate of # with Adam", evidence) == [1e-7]
    ratios = [ratio(model, -1, i) for i in (0, 2, 4)]
    assert moved == shortened(np.median(ratios), 1)
    (rate,) = numbers(
        "raise the learning rate to about #, so that a step changes the weights by 0.1%", verdict.advice.lower()
    )
    assert rate == shortened(1e-7 * 1e-3 / np.median(ratios), 1)


def test_the_range_of_the_input_and_its_rms(tmp_path):
    data = [(100 * x + 50, y) for x, y in classes()]
    model = Recorded(sized(linear(8, 3)), CROSS_ENTROPY, rate=1e-6)
    low, high, size = numbers("ranges from # to #, with an RMS of #;", said(tmp_path, model, data, "input_scale"))
    x = model.batch
    assert [low, high, size] == [shortened(number, 3) for number in (x.min(), x.max(), rms(x))]


def test_the_gradient_elsewhere_where_one_is_cut_off(tmp_path):
    model = Recorded(
        sized(linear(8, 8), lambda: Does(torch.detach), linear(8, 8), nn.ReLU, linear(8, 3)), CROSS_ENTROPY
    )
    (usual,) = numbers("elsewhere the gradient RMS is #", said(tmp_path, model, classes(), "no_gradient"))
    assert usual == pytest.approx(np.median([rms(of_layer(model.grads, i)) for i in (2, 4)]), rel=0.05)


def test_by_how_much_answers_differ_that_are_all_alike(tmp_path):
    def spread(name):
        """By how much outputs differ between samples, as a share of their RMS."""
        return math.sqrt(model.outputs[name].var(0).mean()) / rms(model.outputs[name])

    net = sized(linear(8, 16), nn.ReLU, linear(16, 16), nn.ReLU, linear(16, 3))
    net[2].weight.data *= 1e-4
    net[2].bias.data.fill_(1.0)
    model = Recorded(net, CROSS_ENTROPY, rate=1e-5)
    evidence = said(tmp_path, model, classes(), "collapsed")
    least, most, left = numbers(
        "by only # of their RMS, but those of net.1 differ by #; the difference is lost between net.1 and net.2 "
        "(whose outputs differ by #",
        evidence,
    )
    assert least == shortened(spread("net.4"), 1)
    assert most == shortened(spread("net.1"))
    assert left == shortened(spread("net.2"), 1)


def test_the_factor_by_which_a_layer_scales_its_input(tmp_path):
    net = sized(*[linear(16, 16)] * 6, linear(16, 3))
    net[3].weight.data *= 40
    data = classes(width=16)
    model = Recorded(net, CROSS_ENTROPY, rate=1e-6)
    evidence = said(tmp_path, model, data, "activation_scale")
    size, gain, usual = numbers(
        "RMS of its output is #, which is # times that of the layer before it (median of the other layers: # times)",
        evidence,
    )
    sizes = [rms(model.outputs[f"net.{i}"]) for i in range(7)]
    gains = [after / before for before, after in pairwise(sizes)]
    assert gain == pytest.approx(gains[2], rel=0.06)
    assert size == shortened(sizes[3])
    assert usual == pytest.approx(np.exp(np.median(np.log(gains[:2] + gains[3:]))), rel=0.06)


def test_the_share_of_updates_that_are_lost_in_rounding_here_and_in_other_layers(tmp_path):
    class Grouped(Recorded):
        def configure_optimizers(self):
            groups = [{"params": self.net[i].parameters(), "lr": rate} for i, rate in ((0, 1e-5), (2, 0.1), (4, 0.1))]
            return torch.optim.SGD(groups)

    net = sized(linear(8, 16), nn.ReLU, linear(16, 16), nn.ReLU, linear(16, 3)).to(torch.bfloat16)
    model = Grouped(net, lambda out, y: CROSS_ENTROPY(out.float(), y))
    data = [(x.to(torch.bfloat16), y) for x, y in classes()]
    verdict = verdict_of(tmp_path, model, data, "precision")

    def lost(layer):
        keys = [f"{layer}.{name}" for name in ("weight", "bias")]
        return max(np.mean((model.after[key] == model.before[key])[model.grads[key] != 0]) for key in keys)

    told = numbers("#% of its updates in bfloat16 are lost to rounding (in other layers, #%)", verdict.evidence)
    others = np.median([lost(f"net.{i}") for i in (2, 4)])
    assert told == [round(100 * lost(verdict.module)), round(100 * others)]


@pytest.mark.parametrize("nonfinite", ["exact", "late"])
def test_how_many_values_are_nan_and_the_range_of_the_input(nonfinite):
    """`late` tells it from the looks, `exact` from the graph of the loss."""
    model = sized(linear(8, 16), lambda: Does(torch.sqrt), linear(16, 3))
    with torch.no_grad():
        model[0].bias.fill_(3.0)
    before = [p.detach().clone() for p in model[0].parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    monitor = HealthMonitor(every_n_steps=1, nonfinite=nonfinite)
    x, y = classes()[0]
    with watch(model, optimizer, [monitor]) as run:
        for batch in (x / 100, 10 * x):
            with run.step():
                optimizer.zero_grad()
                CROSS_ENTROPY(model(batch), y).backward()
                optimizer.step()
    verdict = monitor.verdicts[0]
    assert (verdict.rule, verdict.module) == ("nonfinite", "1")
    exact = nn.functional.linear(10 * x.double(), *map(torch.Tensor.double, before)).numpy()
    counts = [(exact < 0).sum(), exact.size]
    if nonfinite == "exact":
        assert numbers("(# of # values are NaN)", verdict.evidence) == counts
        return
    told = numbers(
        "NaN appeared in # of # values of its output (forward); the output of the layer before it, '0', was finite "
        "(from # to #), at step #",
        verdict.evidence,
    )
    assert told == [*counts, shortened(exact.min(), 3), shortened(exact.max(), 3), 1]


class OfItsOwn(nn.Parameter):
    """A parameter of a class of the user's."""


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_large_weight_of_a_class_of_its_own_is_compared_whole(is_trained):
    net = nn.Module()
    net.head, net.fixed = nn.Linear(4, 1), nn.Module()
    net.fixed.weight = OfItsOwn(torch.randn(5, 40_000), requires_grad=is_trained)
    optimizer, monitor = torch.optim.SGD(net.parameters(), lr=0.1), HealthMonitor(every_n_steps=1)
    before = net.fixed.weight.detach().double().clone()
    with watch(net, optimizer, [monitor]) as run:
        with run.step(x := torch.randn(8, 4)):
            (net.head(x).square().mean() + 0.1 * net.fixed.weight.sum()).backward()
            optimizer.step()
        found = {one.site.role: one.moments for one in monitor.readings if one.site.name == "fixed.weight"}
    after = net.fixed.weight.detach().double()
    for role, exact in {"parameter_before": before, "parameter_update": after - before}.items():
        size = exact.square().mean().sqrt().item()
        assert (found[role].count, found[role].rms) == (200_000, pytest.approx(size, rel=1e-5))


def said_of_attention(monkeypatch, net, rate):
    """The verdicts by layer, and the numbers of the heads of the first layer at each look."""
    calls = recorded_calls(monkeypatch)
    monitor = HealthMonitor(every_n_steps=EVERY, audit=False)
    fit(None, Predicts(net, rate), counting(80), monitor)
    heads = [heads_of(calls[2 * step : 2 * step + 2])[0] for step in looks_of(80)]
    found = {one.module: one for one in monitor.verdicts if one.rule == "activation_scale"}
    return found, heads


def test_the_largest_logit_and_the_entropy_then_and_now(monkeypatch):
    found, heads = said_of_attention(monkeypatch, language_model(), 0.3)
    assert found.keys() == {"net.1.attention", "net.2.attention"}
    assert all("QK norm" in one.advice or one.follows_from == ("update_too_large", "") for one in found.values())
    before, now, head, entropy_before, entropy = numbers(
        ("largest attention logit rose from # at the first measurement to # in head #, whose entropy fell from # to #"),
        found["net.1.attention"].evidence,
    )
    head = int(head)
    (first_logits, first_entropies), last = heads[0], heads[-1]
    assert before == shortened(first_logits[head].max(), 3)
    assert entropy_before == shortened(first_entropies[head].mean(), 2)
    assert head == int(last[0].amax(1).argmax())
    assert now == shortened(last[0][head].max(), 3)
    assert entropy == shortened(last[1][head].mean(), 2)


def test_heads_that_all_look_at_one_key_from_the_start(monkeypatch):
    net = language_model()
    net[1].attention.qkv.weight.data[:32] *= 100
    found, heads = said_of_attention(monkeypatch, net, 1e-6)
    count, entropy, largest = numbers(
        "each of its # heads attends to a single key: the entropy of its attention is at most #, with logits up to #",
        found["net.1.attention"].evidence,
    )
    assert count == 2
    assert any(entropy == shortened(entropies.mean(1).max(), 2) for _, entropies in heads)
    assert any(largest == shortened(logits.max(), 3) for logits, _ in heads)
