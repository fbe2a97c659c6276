"""The numbers of verdicts on the scale of inputs, outputs, weights and losses, each against float64."""

import numpy as np
import pytest
import torch
from callbacks.course import Course, looks_of, shortened
from callbacks.user_program import Does
from recorded import CROSS_ENTROPY, STEPS, Recorded, classes, linear, numbers, rms, said, sized, verdict_of
from torch import nn

MSE = nn.functional.mse_loss


# The batch


def given(change):
    return Recorded(sized(linear(8, 3)), CROSS_ENTROPY, rate=1e-9), [(change(x), y) for x, y in classes()]


def test_the_column_that_is_far_out_and_what_is_usual(tmp_path):
    model, data = given(lambda x: x * torch.tensor([1.0, 1, 1, 1, 1, 3000, 1, 1]))
    evidence = said(tmp_path, model, data, "input_scale")
    column, size, usual, far, columns = numbers(
        "column # of the input has an RMS of #, while a typical column has # (# of # columns is this extreme)",
        evidence,
    )
    sizes = np.sqrt((model.batch**2).mean(0))
    assert (column, far, columns) == (np.argmax(sizes), 1, 8)
    assert size == shortened(sizes.max(), 3)
    assert usual == pytest.approx(np.median(sizes), rel=0.05)


def test_the_columns_that_never_change(tmp_path):
    model, data = given(lambda x: torch.cat([x[:, :5], torch.full((32, 2), 0.625), x[:, 7:]], 1))
    evidence = said(tmp_path, model, data, "input_scale")
    constant, columns, column, value = numbers(
        "# of # columns of the input never change: column # is always #", evidence
    )
    still = np.flatnonzero((model.batch == model.batch[0]).all(0))
    assert (constant, columns, column) == (len(still), 8, still[0])
    assert value == shortened(model.batch[0, still[0]], 3)


def test_the_value_that_all_of_the_input_has(tmp_path):
    model, data = given(lambda x: torch.full_like(x, 0.375))
    count, value = numbers("all # values are #", said(tmp_path, model, data, "input_scale"))
    assert (count, value) == (model.batch.size, model.batch[0, 0])


def test_the_range_and_the_rms_of_a_small_input(tmp_path):
    model, data = given(lambda x: x / 300)
    evidence = said(tmp_path, model, data, "input_scale")
    low, high, size = numbers("ranges from # to #, with an RMS of only #;", evidence)
    assert [low, high] == [shortened(value, 3) for value in (model.batch.min(), model.batch.max())]
    assert size == shortened(rms(model.batch))


def test_by_how_much_an_input_varies_around_its_mean(tmp_path):
    model, data = given(lambda x: 10 + x / 10)
    evidence = said(tmp_path, model, data, "input_scale")
    low, high, varies, mean = numbers("ranges from # to # and varies by # around #", evidence)
    assert [low, high, mean] == [shortened(f(model.batch), 3) for f in (np.min, np.max, np.mean)]
    assert varies == shortened(model.batch.std())


# Outputs


def shrinking(*before):
    net = sized(*before, *[linear(16, 16)] * 8, linear(16, 3))
    for layer in net[len(before) :]:
        nn.init.orthogonal_(layer.weight, 0.25)
        nn.init.zeros_(layer.bias)
    return Recorded(net, CROSS_ENTROPY, rate=1e-9)


def test_by_how_much_outputs_shrink_in_each_layer(tmp_path):
    model = shrinking(lambda: nn.LayerNorm(16))
    evidence = said(tmp_path, model, classes(width=16), "activation_scale")
    layers, first, last, each = numbers("shrinks over # layers from # to #, by a factor of # per layer", evidence)
    sizes = [rms(model.outputs[f"net.{i}"]) for i in range(1, 10)]
    assert layers == 9
    assert (first, last) == (shortened(sizes[0]), shortened(sizes[-1]))
    assert each == pytest.approx((sizes[-1] / sizes[0]) ** (1 / 8), rel=0.1)


def test_how_large_the_outputs_of_a_layer_were_that_has_grown_out_of_line(tmp_path):
    model = drifting(*[linear(16, 16)] * 6, linear(16, 3), times=(3, 1.05))
    evidence = said(tmp_path, model, classes(width=16), "activation_scale")
    (size,) = numbers("; this layer's RMS was # at the first measurement", evidence)
    assert size == shortened(rms(model.course[0]["net.3"]))


def test_by_how_much_the_output_of_one_layer_differs(tmp_path):
    net = sized(linear(8, 16), nn.Tanh, linear(16, 16), lambda: nn.BatchNorm1d(16), nn.ReLU, linear(16, 3))
    model = Recorded(net, CROSS_ENTROPY, rate=1e-9)

    def shift(*args):
        if model.losses:
            net[2].bias.data.fill_(2000.0)

    model.on_train_batch_start = shift
    verdict = verdict_of(tmp_path, model, classes(), "collapsed")
    differs, before, usual = numbers(
        "differs between samples by only # of its RMS (the layer before it: #; the median layer: #)", verdict.evidence
    )

    def spread(i):
        """The root mean square of the channels' deviations, over the RMS."""
        outputs = model.outputs[f"net.{i}"]
        return np.sqrt(outputs.var(0).mean()) / rms(outputs)

    assert verdict.module == "net.2"
    assert (differs, before) == (shortened(spread(2), 1), shortened(spread(1)))
    assert usual == shortened(np.median([spread(i) for i in range(6)]))


def drifting(*layers, times):
    """A model in which something else makes the weights of a layer larger before each step."""
    model = Course(sized(*layers), CROSS_ENTROPY, rate=1e-30)
    index, factor = times

    def grow(*args):
        model.net[index].weight.data *= factor

    model.on_train_batch_start = grow
    return model


def moved(model, name):
    """The RMS of a layer's output in the first three looks, which are the window, and at the last."""
    sizes = [rms(model.course[step][name]) for step in looks_of(STEPS)]
    return np.median(sizes[:3]), sizes[-1]


def test_where_the_output_of_a_layer_went_and_those_of_others(tmp_path):
    model = drifting(linear(8, 16), nn.Tanh, linear(16, 16), nn.Tanh, linear(16, 3), times=(2, 1.06))
    model.loss = lambda outputs, targets: CROSS_ENTROPY(outputs, targets) * 1.02 ** len(model.losses)  # it rises
    verdict = verdict_of(tmp_path, model, classes(), "activation_scale")
    before, now, usual = numbers(
        "changed from # in the first measurements to # (by a factor of # in the median layer)", verdict.evidence
    )
    assert (before, now) == tuple(map(shortened, moved(model, verdict.module)))
    # Of three layers, of which the head counts as one that has not grown.
    (first, last), (before, now) = moved(model, "net.0"), moved(model, "net.4")
    assert usual == shortened(np.median([last / first, min(now / before, 1.0), 1e9]))


def test_by_how_much_the_outputs_of_most_layers_have_grown(tmp_path):
    model = drifting(linear(8, 16), linear(16, 16), linear(16, 16), linear(16, 3), times=(0, 1.15))
    evidence = said(tmp_path, model, classes(), "activation_scale")
    (grown,) = numbers("the outputs of most layers have grown to # times their initial RMS", evidence)
    ratios = [now / before for before, now in (moved(model, f"net.{i}") for i in range(3))]
    assert grown == shortened(10 ** np.median([*np.log10(ratios), 0.0]))  # 0 for the head


def test_the_largest_output_near_the_limit_of_float16(tmp_path):
    net = sized(linear(8, 8), linear(8, 3)).half()
    net[1].bias.data.fill_(3e4)
    model = Recorded(net, lambda out, y: CROSS_ENTROPY(out.float(), y), rate=0.0)
    data = [(x.half(), y) for x, y in classes()]
    largest, limit = numbers(
        "its largest output is #, and float16's limit is #", said(tmp_path, model, data, "precision")
    )
    assert (largest, limit) == (shortened(np.abs(model.outputs["net.1"]).max(), 3), 65504)


def test_the_share_of_gradients_below_the_normal_range_of_float16(tmp_path):
    net = sized(linear(8, 8), linear(8, 3)).half()
    model = Recorded(net, lambda out, y: 4e-3 * CROSS_ENTROPY(out.float(), y), rate=0.0)
    verdict = verdict_of(tmp_path, model, [(x.half(), y) for x, y in classes()], "precision")
    (share,) = numbers("#% of the gradients of its output", verdict.evidence)
    gradient = model.gradients[verdict.module]
    # A bin of the histogram holds values of both sides of the border.
    assert share == pytest.approx(100 * np.mean(np.abs(gradient[gradient != 0]) < 2**-14), abs=8)


def test_the_share_of_updates_that_most_layers_lose_in_rounding(tmp_path):
    net = sized(*[linear(8, 8), nn.Tanh] * 3, linear(8, 3)).to(torch.bfloat16)
    model = Recorded(net, lambda out, y: CROSS_ENTROPY(out.float(), y), rate=5e-4)
    data = [(x.to(torch.bfloat16), y) for x, y in classes()]
    share, layers = numbers(
        "#% of the updates of # layers in bfloat16 are lost to rounding", said(tmp_path, model, data, "precision")
    )

    def lost(name):
        return np.mean((model.after[name] == model.before[name])[model.grads[name] != 0])

    shares = [max(lost(f"net.{i}.{name}") for name in ("weight", "bias")) for i in (0, 2, 4, 6)]
    sick = [lost for lost in shares if lost > 0.9]
    assert (share, layers) == (round(100 * np.median(sick)), len(sick))


def finite():
    return Does(lambda x: x.nan_to_num(neginf=0.0))


def test_the_share_of_the_input_that_is_not_finite(tmp_path):
    holes = torch.arange(256).reshape(32, 8) % 37 == 5
    data = [(x.masked_fill(holes, torch.nan), y) for x, y in classes()]
    model = Recorded(sized(finite, linear(8, 3)), CROSS_ENTROPY, rate=1e-3)
    (share,) = numbers("#% of the values are NaN or infinite", said(tmp_path, model, data, "input_scale"))
    assert share == shortened(100 * (~np.isfinite(model.batch)).mean(), 3)


def test_the_loss_where_a_layer_gives_inf_that_a_later_one_takes_away(tmp_path):
    net = sized(linear(8, 8), lambda: Does(lambda x: x.masked_fill(x < 0, -torch.inf)), finite, linear(8, 3))
    model = Recorded(net, CROSS_ENTROPY, rate=1e-3)
    step, loss = numbers("at step #, batch 0; the loss is #", said(tmp_path, model, classes(1), "nonfinite"))
    assert (step, loss) == (0, shortened(model.losses[0], 3))


# The loss


def test_a_loss_that_falls_without_end(tmp_path):
    model = Recorded(sized(linear(8, 3)), lambda out, y: out.mean(), rate=50.0)
    evidence = said(tmp_path, model, [(x + 1, y) for x, y in classes(300)], "not_learning")
    start, lowest = numbers("the loss fell from # to # and seems to", evidence)
    assert lowest == pytest.approx(min(model.losses), rel=0.1)
    assert start == shortened(model.losses[0], 3)


def test_where_a_loss_has_risen_to(tmp_path):
    model = Recorded(sized(linear(8, 3)), MSE, rate=1e-7)
    data = [(x, x[:, :3] * (1 if step < 60 else 30)) for step, (x, _) in enumerate(classes(120))]
    evidence = said(tmp_path, model, data, "update_too_small")
    now, first = numbers("the loss is #, up from # at the first step", evidence)
    assert first == shortened(model.losses[0], 3)
    assert now == shortened(np.median(model.losses[-16:]), 3)
