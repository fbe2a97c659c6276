"""The numbers of verdicts on the scale of inputs, outputs, weights and losses, each against float64."""

import numpy as np
import pytest
import torch
from recorded import CROSS_ENTROPY, Recorded, classes, linear, numbers, rms, said, sized, verdict_of
from torch import nn

MSE = nn.functional.mse_loss


def shortened(number, digits=2):
    """A number as it is printed."""
    return float(f"{number:.{digits}g}")


# The batch


def test_the_column_that_is_far_out_and_what_is_usual(tmp_path):
    data = [(x * torch.tensor([1.0, 1, 1, 1, 1, 3000, 1, 1]), y) for x, y in classes()]
    model = Recorded(sized(linear(8, 3)), CROSS_ENTROPY, rate=1e-9)
    evidence = said(tmp_path, model, data, "input_scale")
    column, size, far, columns, usual = numbers(
        "column # of the input has an RMS of #, # of # columns are that far out; usual: #", evidence
    )
    sizes = np.sqrt((model.batch**2).mean(0))
    assert (column, far, columns) == (np.argmax(sizes), 1, 8)
    assert size == shortened(sizes.max(), 3)
    assert usual == pytest.approx(np.median(sizes), rel=0.05)


def test_the_columns_that_never_change(tmp_path):
    data = [(torch.cat([x[:, :5], torch.full((32, 2), 0.625), x[:, 7:]], 1), y) for x, y in classes()]
    model = Recorded(sized(linear(8, 3)), CROSS_ENTROPY, rate=1e-9)
    evidence = said(tmp_path, model, data, "input_scale")
    constant, columns, column, value = numbers("# of # columns of the input never change: column # is #", evidence)
    still = np.flatnonzero((model.batch == model.batch[0]).all(0))
    assert (constant, columns, column) == (len(still), 8, still[0])
    assert value == shortened(model.batch[0, still[0]], 3)


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
    layers, first, last, each = numbers("shrinks over # layers from # to #, by a factor of # in each layer", evidence)
    sizes = [rms(model.outputs[f"net.{i}"]) for i in range(1, 10)]
    assert layers == 9
    assert (first, last) == (shortened(sizes[0]), shortened(sizes[-1]))
    assert each == pytest.approx((sizes[-1] / sizes[0]) ** (1 / 8), rel=0.1)


def test_by_how_much_weights_scale_a_signal(tmp_path):
    model = shrinking()
    evidence = said(tmp_path, model, classes(width=16), "activation_scale")
    layers, each, whole = numbers("the weights of # layers scale a signal by a factor of # in each, # in all", evidence)
    norms = [np.sqrt((model.after[f"net.{i}.weight"] ** 2).sum(1).mean()) for i in range(9)]
    assert layers == 9
    assert (each, whole) == (shortened(np.prod(norms) ** (1 / 9)), shortened(np.prod(norms)))


def test_the_share_that_a_dropout_drops_and_the_factor_of_the_rest(tmp_path):
    net = sized(linear(8, 256), lambda: nn.Dropout(0.97), linear(256, 3))
    model = Recorded(net, CROSS_ENTROPY, rate=1e-9)
    evidence = said(tmp_path, model, classes(), "activation_scale")
    dropped, factor = numbers("it drops # % of its input, and scales the rest by #", evidence)
    share = np.mean(model.outputs["net.1"] == 0)
    assert dropped == round(100 * share)
    assert factor == shortened(1 / (1 - share))


def test_the_gradient_of_a_softmax_before_a_softmax(tmp_path):
    net = sized(linear(8, 3), lambda: nn.Softmax(1))
    model = Recorded(net, CROSS_ENTROPY, rate=1e-9)
    mean, size = numbers("(its mean is #, its RMS #)", said(tmp_path, model, classes(), "saturated"))
    gradient = model.gradients["net.1"]
    assert mean == pytest.approx(0, abs=1e-8)
    assert size == shortened(rms(gradient), 1)


class Last(nn.Module):
    def forward(self, outputs_and_states):
        return outputs_and_states[0][:, -1]


class OfRecurrent(Recorded):
    """Keeps the outputs of a recurrent layer, which gives its states with them."""

    def _keep(self, name):
        def hook(module, args, output):
            if torch.is_tensor(output):
                return
            self.outputs[name] = output[0].detach().double().numpy().copy()
            self.given = args[0].detach().double().numpy()

        return hook


def series():
    return [(x.reshape(8, 4, 8), y[:8]) for x, y in classes()]


def test_the_outputs_of_shut_gates(tmp_path):
    net = sized(linear(8, 8), lambda: nn.LSTM(8, 8, batch_first=True), Last, linear(8, 3))
    net[1].bias_ih_l0.data[24:] = -12.0
    model = OfRecurrent(net, CROSS_ENTROPY, rate=1e-9)
    evidence = said(tmp_path, model, series(), "saturated")
    output, given = numbers("its output has an RMS of #, its input #", evidence)
    assert output == shortened(rms(model.outputs["net.1"]))
    assert given == shortened(rms(model.given))


def test_the_norm_of_recurrent_weights(tmp_path):
    net = sized(lambda: nn.RNN(8, 8, batch_first=True), Last, linear(8, 3))
    net[0].weight_hh_l0.data *= 20
    model = OfRecurrent(net, CROSS_ENTROPY, rate=1e-9)
    evidence = said(tmp_path, model, series(), "activation_scale")
    (norm,) = numbers("weights of a unit have an L2 norm of #: ", evidence)
    assert norm == shortened(np.sqrt((model.after["net.0.weight_hh_l0"] ** 2).sum(1).mean()))


def test_the_largest_output_near_the_limit_of_float16(tmp_path):
    net = sized(linear(8, 8), linear(8, 3)).half()
    net[1].bias.data.fill_(3e4)
    model = Recorded(net, lambda out, y: CROSS_ENTROPY(out.float(), y), rate=0.0)
    data = [(x.half(), y) for x, y in classes()]
    (largest,) = numbers("its largest output is #, ", said(tmp_path, model, data, "precision"))
    assert largest == shortened(np.abs(model.outputs["net.1"]).max(), 3)


def test_the_share_of_gradients_below_the_normal_range_of_float16(tmp_path):
    net = sized(linear(8, 8), linear(8, 3)).half()
    model = Recorded(net, lambda out, y: 4e-3 * CROSS_ENTROPY(out.float(), y), rate=0.0)
    verdict = verdict_of(tmp_path, model, [(x.half(), y) for x, y in classes()], "precision")
    (share,) = numbers("#% of the gradients of its output", verdict.evidence)
    gradient = model.gradients[verdict.module]
    # A bin of the histogram holds values of both sides of the border.
    assert share == pytest.approx(100 * np.mean(np.abs(gradient[gradient != 0]) < 2**-14), abs=8)


# The loss


def test_a_loss_that_falls_without_end(tmp_path):
    model = Recorded(sized(linear(8, 3)), lambda out, y: out.mean(), rate=50.0)
    evidence = said(tmp_path, model, [(x + 1, y) for x, y in classes(300)], "not_learning")
    start, lowest = numbers("the loss fell from # to #: it has no", evidence)
    assert lowest == pytest.approx(min(model.losses), rel=0.1)
    assert start == shortened(np.median(model.losses[:4]), 3)


def test_where_a_loss_has_risen_to(tmp_path):
    model = Recorded(sized(linear(8, 3)), MSE, rate=1e-3)
    data = [(x, x[:, :3] * (1 if step < 60 else 30)) for step, (x, _) in enumerate(classes(120))]
    evidence = said(tmp_path, model, data, "clipping", gradient_clip_val=1e-3)
    now, first = numbers("the loss is # after # at the start", evidence)
    assert first in {shortened(model.losses[0], 3), shortened(np.median(model.losses[:4]), 3)}
    assert now == shortened(np.median(model.losses[-16:]), 3)
