"""The numbers that verdicts quote, each against float64 over the raw tensors of the step that was looked at last.

Those of `update_too_large` are in `health/test_what_is_over.py`, of `symmetric_units` in `health/test_symmetry.py`, of
`nonfinite` in `test_black_box.py`.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
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
    dead, units = numbers("# of # units of net.1 (ReLU) gave 0", verdict.evidence)
    assert (dead, units) == ((model.outputs["net.1"] == 0).all(0).sum(), 16)
    assert numbers("biases of this layer with 0: they are # in the mean", verdict.advice) == [float(f"{bias:.3g}")]


def test_how_far_the_step_moved_the_weights_of_units_that_died_of_it(tmp_path):
    net = sized(linear(8, 16), nn.ReLU, linear(16, 3))
    model = Recorded(net, rate=1e-2)
    moved = {}

    def loss(out, y):
        return CROSS_ENTROPY(out, y) + (1000 * net[0].bias.sum() if len(model.losses) == 29 else 0)

    def keep(*args):
        Recorded.on_train_batch_end(model)
        before, after = (
            np.concatenate([part[f"net.0.{name}"].ravel() for name in ("weight", "bias")])
            for part in (model.before, model.after)
        )
        moved[len(model.losses) - 1] = rms(after - before) / rms(before)

    model.loss, model.on_train_batch_end = loss, keep
    (share,) = numbers("a step moved these weights by #%.", verdict_of(tmp_path, model, classes(), "dead_units").advice)
    assert share == round(100 * moved[29])


@pytest.mark.parametrize(("kind", "gain"), [(nn.Tanh, 12), (nn.Sigmoid, 40), (nn.Sigmoid, 300)])
def test_the_share_of_saturated_outputs_and_where_they_lie(tmp_path, kind, gain):
    net = sized(linear(8, 16), kind, linear(16, 3))
    net[0].weight.data *= gain
    model = Recorded(net, CROSS_ENTROPY, rate=0.0)
    evidence = said(tmp_path, model, classes(), "saturated")
    share, *ends = numbers(
        f"# % of the outputs of net.1 ({kind.__name__}) lie at the ends of its range, from # to # or from # to #",
        evidence,
    )
    outputs = model.outputs["net.1"].astype(np.float32)
    low, below, above, high = ends
    assert low == pytest.approx(outputs.min(), rel=5e-3)
    assert high == outputs.max() == 1
    assert share == pytest.approx(100 * ((outputs <= below) | (outputs >= above)).mean(), abs=1)


def test_the_share_of_units_that_stay_at_one_end(tmp_path):
    net = sized(linear(8, 16), nn.Sigmoid, linear(16, 3))
    net[0].weight.data *= 0.1
    net[0].bias.data[:12] = 5.0
    model = Recorded(net, CROSS_ENTROPY, rate=0.0)
    evidence = said(tmp_path, model, classes(), "saturated")
    pattern = "# % of the units of net.1 (Sigmoid) stayed below #, or above #, at the last # looks"
    share, below, above, looks = numbers(pattern, evidence)
    outputs = model.outputs["net.1"]
    assert (below, above, looks) == (0.015, 0.985, 3)
    assert share == 100 * ((outputs >= 0.985).all(0) | (outputs <= 0.015).all(0)).mean() == 75


def test_the_factor_by_which_the_gradient_falls(tmp_path):
    net = sized(*[linear(8, 8), nn.Sigmoid] * 6, linear(8, 3))
    model = Recorded(net, CROSS_ENTROPY)
    (fall,) = numbers("falls by a factor of # from", said(tmp_path, model, classes(), "vanishing_gradient"))
    norms = [np.linalg.norm(model.gradients[f"net.{i}"]) for i in range(13)]
    # The last quarter of 13 layers, and the second, as the most that any layer up to it gets.
    assert fall == pytest.approx(np.exp(np.median(np.log(norms[-3:]))) / max(norms[:2]), rel=0.06)


def test_how_far_a_step_moves_the_weights_that_moves_them_too_little(tmp_path):
    net = sized(linear(8, 16), nn.ReLU, linear(16, 16), nn.ReLU, linear(16, 3))
    model = Recorded(net, CROSS_ENTROPY, rate=1e-7, optimizer=torch.optim.Adam)
    verdict = verdict_of(tmp_path, model, classes(), "update_too_small")
    evidence = verdict.evidence
    (moved,) = numbers("moves the weights by # of their size", evidence)
    assert numbers("usual, at a learning rate of # in Adam", evidence) == [1e-7]
    ratios = []
    for i in (0, 2, 4):
        before, after = (
            np.concatenate([part[f"net.{i}.{name}"].ravel() for name in ("weight", "bias")])
            for part in (model.before, model.after)
        )
        ratios.append(rms(after - before) / rms(before))
    assert moved == float(f"{np.median(ratios):.1g}")
    (rate,) = numbers("raise the learning rate to about #, at which a step is 0.1%", verdict.advice.lower())
    assert rate == float(f"{1e-7 * 1e-3 / np.median(ratios):.1g}")


def test_the_range_of_the_input_and_its_rms(tmp_path):
    data = [(100 * x + 50, y) for x, y in classes()]
    model = Recorded(sized(linear(8, 3)), CROSS_ENTROPY, rate=1e-6)
    low, high, size = numbers("ranges from # to #, with an RMS of #;", said(tmp_path, model, data, "input_scale"))
    x = model.batch
    assert [low, high, size] == [float(f"{number:.3g}") for number in (x.min(), x.max(), rms(x))]


class Cut(nn.Module):
    def forward(self, x):
        return x.detach()


def test_the_gradient_elsewhere_where_one_is_cut_off(tmp_path):
    model = Recorded(sized(linear(8, 8), Cut, linear(8, 8), nn.ReLU, linear(8, 3)), CROSS_ENTROPY)
    (usual,) = numbers("elsewhere its RMS is #", said(tmp_path, model, classes(), "no_gradient"))
    sizes = [
        rms(np.concatenate([model.grads[f"net.{i}.{name}"].ravel() for name in ("weight", "bias")])) for i in (2, 4)
    ]
    assert usual == pytest.approx(np.median(sizes), rel=0.05)


def spread(outputs):
    """By how much outputs differ between samples, as a share of their RMS."""
    return math.sqrt(outputs.var(0).mean()) / rms(outputs)


def test_by_how_much_answers_differ_that_are_all_alike(tmp_path):
    net = sized(linear(8, 16), nn.ReLU, linear(16, 16), nn.ReLU, linear(16, 3))
    net[2].weight.data *= 1e-4
    net[2].bias.data.fill_(1.0)
    model = Recorded(net, CROSS_ENTROPY, rate=1e-5)
    evidence = said(tmp_path, model, classes(), "collapsed")
    least, most, left = numbers(
        "by # of their RMS, those of net.1 by #; the difference is lost in this layer, after which it is #", evidence
    )
    assert least == float(f"{spread(model.outputs['net.4']):.1g}")
    assert most == float(f"{spread(model.outputs['net.1']):.2g}")
    assert left == float(f"{spread(model.outputs['net.2']):.1g}")


def random_labels():
    made = torch.Generator().manual_seed(1)
    data = [(x, torch.randint(3, (32,), generator=made)) for x, _ in classes(200)]
    model = Recorded(sized(linear(8, 32), nn.ReLU, linear(32, 3)), CROSS_ENTROPY, rate=5e-3, optimizer=torch.optim.Adam)
    return model, data


def test_the_loss_at_the_end_of_the_training_and_that_of_chance(tmp_path):
    model, data = random_labels()
    evidence = said(tmp_path, model, data, "not_learning")
    told = numbers("ended after # steps with a loss of #, after # at the first step; chance gives #", evidence)
    at_end, at_start = np.median(model.losses[-50:]), model.losses[0]
    assert told == [200, *(float(f"{value:.3g}") for value in (at_end, at_start, math.log(3)))]


def test_the_loss_that_stays_and_the_cosine_of_gradients(tmp_path):
    model, data = random_labels()
    monitor, heard = HealthMonitor(every_n_steps=EVERY, rules=["not_learning"]), []

    def hear(*args):
        heard.extend(verdict.evidence for verdict in monitor.verdicts)

    model.on_train_batch_end = hear
    fit(tmp_path, model, data, monitor)
    evidence = heard[-1]
    # It says the one or the other, at 5 % below the start.
    is_there = "stays at" in evidence
    told = numbers("stays at #, after # at the start" if is_there else "came down from # to # and no longer", evidence)
    now, first = told if is_there else told[::-1]
    (chance,) = numbers("(chance: #)", evidence)
    assert first == float(f"{np.median(model.losses[:4]):.3g}")
    assert chance == 1.1
    # The verdict may be of any of the last looks.
    levels = [np.median(model.losses[end - 16 : end]) for end in range(100, 201, EVERY)]
    assert any(now == float(f"{level:.3g}") for level in levels)


def test_a_spike_and_the_median_before_it(tmp_path):
    data = classes()
    data[49] = (1e3 * data[49][0], (data[49][1] + 1) % 3)
    model = Recorded(sized(linear(8, 16), nn.ReLU, linear(16, 3)), CROSS_ENTROPY, rate=1e-4)
    evidence = said(tmp_path, model, data, "spike")
    loss, step, usual = numbers("the loss was # at step #, batch 49; the median before was #", evidence)
    known = model.losses[:49]  # the losses up to the look before are those that it is held against
    assert (loss, step) == (float(f"{model.losses[49]:.3g}"), 49)
    assert usual in {float(f"{np.median(known[:end]):.3g}") for end in (40, 49)}


def test_the_factor_by_which_a_layer_scales_its_input(tmp_path):
    net = sized(*[linear(16, 16)] * 6, linear(16, 3))
    net[3].weight.data *= 40
    data = classes(width=16)
    model = Recorded(net, CROSS_ENTROPY, rate=1e-6)
    evidence = said(tmp_path, model, data, "activation_scale")
    gain, size, usual = numbers("has # times the RMS of its input (#); usual here: # times", evidence)
    sizes = [rms(model.outputs[f"net.{i}"]) for i in range(7)]
    gains = [after / before for before, after in pairwise(sizes)]
    assert gain == pytest.approx(gains[2], rel=0.06)
    assert size == float(f"{sizes[3]:.2g}")
    assert usual == pytest.approx(np.exp(np.median(np.log(gains[:2] + gains[3:]))), rel=0.06)


def test_the_share_of_updates_that_are_lost_in_rounding(tmp_path):
    net = sized(linear(8, 16), nn.ReLU, linear(16, 3)).to(torch.bfloat16)
    data = [(x.to(torch.bfloat16), y) for x, y in classes()]
    model = Recorded(net, lambda out, y: CROSS_ENTROPY(out.float(), y), rate=1e-4)
    monitor = HealthMonitor(every_n_steps=EVERY, rules=["precision"])
    fit(tmp_path, model, data, monitor)
    for verdict in monitor.verdicts:
        (share,) = numbers("#% of its updates in bfloat16", verdict.evidence)
        shares = []
        for name in ("weight", "bias"):
            key = f"{verdict.module}.{name}"
            has = model.grads[key] != 0
            shares.append(np.mean((model.after[key] == model.before[key])[has]))
        assert share == round(100 * max(shares))
    assert monitor.verdicts


def test_the_share_of_updates_that_other_layers_lose(tmp_path):
    class Grouped(Recorded):
        def configure_optimizers(self):
            groups = [{"params": self.net[i].parameters(), "lr": rate} for i, rate in ((0, 1e-5), (2, 0.1), (4, 0.1))]
            return torch.optim.SGD(groups)

    net = sized(linear(8, 16), nn.ReLU, linear(16, 16), nn.ReLU, linear(16, 3)).to(torch.bfloat16)
    model = Grouped(net, lambda out, y: CROSS_ENTROPY(out.float(), y))
    data = [(x.to(torch.bfloat16), y) for x, y in classes()]
    (others,) = numbers("are lost in rounding; other layers: #%", said(tmp_path, model, data, "precision"))

    def lost(key):
        return np.mean((model.after[key] == model.before[key])[model.grads[key] != 0])

    assert others == round(100 * np.median([max(lost(f"net.{i}.weight"), lost(f"net.{i}.bias")) for i in (2, 4)]))


def test_the_deviation_of_batch_norms_that_use_other_statistics(tmp_path):
    net = sized(linear(8, 16), lambda: nn.BatchNorm1d(16), nn.ReLU, linear(16, 3))
    model = Recorded(net, CROSS_ENTROPY, rate=1e-6)
    net[1].running_var.fill_(100.0)
    model.on_train_batch_start = lambda *args: net[1].eval()
    low, high = numbers("deviate by # to # times their gain", said(tmp_path, model, classes(), "activation_scale"))
    outputs = model.outputs["net.1"]
    share = math.sqrt(outputs.var(0).mean()) / rms(model.before["net.1.weight"])
    assert low == high == float(f"{share:.2g}")


class Root(nn.Module):
    def forward(self, x):
        return x.sqrt()


@pytest.mark.parametrize("nonfinite", ["exact", "late"])
def test_how_many_values_are_nan_and_the_range_of_the_input(nonfinite):
    """`late` tells it from the looks, `exact` from the graph of the loss."""
    model = sized(linear(8, 16), Root, linear(16, 3))
    with torch.no_grad():
        model[0].bias.fill_(3.0)
    before = [p.detach().clone() for p in model[0].parameters()]
    optimizer, monitor = (
        torch.optim.SGD(model.parameters(), lr=1e-6),
        HealthMonitor(every_n_steps=1, nonfinite=nonfinite),
    )
    x, y = classes()[0]
    with watch(model, optimizer, [monitor]) as run:
        for batch in (x / 100, 10 * x):
            with run.step():
                optimizer.zero_grad()
                CROSS_ENTROPY(model(batch), y).backward()
                optimizer.step()
    verdict = monitor.verdicts[0]
    assert (verdict.rule, verdict.module) == ("nonfinite", "1")
    if nonfinite == "exact":
        count, values = numbers("(# NaN in # values)", verdict.evidence)
        exact = nn.functional.linear(10 * x.double(), *map(torch.Tensor.double, before)).numpy()
        assert (count, values) == ((exact < 0).sum(), exact.size)
        return
    count, values, low, high, step = numbers(
        "NaN in # of # values of its output (forward); the output of '0' before it was finite, from # to #, at step #",
        verdict.evidence,
    )
    exact = (nn.functional.linear(10 * x.double(), *map(torch.Tensor.double, before))).numpy()
    assert (count, values, step) == ((exact < 0).sum(), exact.size, 1)
    assert [low, high] == [float(f"{end:.3g}") for end in (exact.min(), exact.max())]
