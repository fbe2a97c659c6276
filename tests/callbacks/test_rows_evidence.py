"""A spike or a NaN tells the rows of the batch that are at fault, in words, as numbers and in `--json`."""

import json
import math

import numpy as np
import pytest
import torch
from attending import ForTransformers, Predicts, language_model
from callbacks.user_program import Does
from recorded import CROSS_ENTROPY, Recorded, classes, linear, numbers, sized
from torch import nn
from toys import fit, fit_in_transformers

from hookboard import HealthMonitor
from hookboard.board.command import main
from hookboard.callbacks.all_ranks import mean_losses
from hookboard.health.look import Loss, WorstRows

BAD, ROW = 49, 5


def spiked(data, row=ROW):
    x, y = data[BAD]
    x, y = x.clone(), y.clone()
    x[row] *= 1e4
    y[row] = (y[row] + 2) % 3
    data[BAD] = x, y
    return data


def monitored(folder, data, net=None):
    model = Recorded(sized(linear(8, 16), nn.ReLU, linear(16, 3)) if net is None else net, CROSS_ENTROPY, rate=1e-4)
    monitor = HealthMonitor(every_n_steps=10)
    logits = {}
    model.net.register_forward_hook(lambda *given: logits.update({len(model.losses): given[2].detach().double()}))
    fit(folder, model, data, monitor)
    return monitor, logits


def verdicts(monitor, rule):
    return [verdict for verdict in monitor.verdicts if verdict.rule == rule]


def test_a_spike_names_the_row_its_loss_and_the_usual_one(tmp_path, capsys):
    data = spiked(classes())
    monitor, logits = monitored(tmp_path, data)
    (verdict,) = verdicts(monitor, "spike")
    row, loss, rows, usual = numbers("row # has a loss of # in cross_entropy() (median of # rows: #)", verdict.evidence)
    given = logits[BAD].numpy()
    losses = np.log(np.exp(given - given.max(1, keepdims=True)).sum(1)) + given.max(1)
    losses -= given[np.arange(len(given)), data[BAD][1]]
    assert (row, rows, verdict.rows) == (ROW, 32, (ROW,))
    assert (loss, usual) == (float(f"{losses[ROW]:.3g}"), float(f"{np.median(losses):.3g}"))
    assert f"check row {ROW} of batch {BAD}" in verdict.advice
    main(["verdicts", str(tmp_path), "--json"])
    (run,) = json.loads(capsys.readouterr().out)
    assert [one["rows"] for one in run["verdicts"] if one["rule"] == "spike"] == [[ROW]]


def test_a_run_without_a_spike_names_none(tmp_path):
    monitor, _ = monitored(tmp_path, classes())
    assert not [verdict for verdict in monitor.verdicts if verdict.rows]


def test_no_row_is_named_where_the_loss_of_all_has_grown(tmp_path):
    data = classes()
    data[BAD] = data[BAD][0] * 1e4, (data[BAD][1] + 1) % 3
    monitor, _ = monitored(tmp_path, data)
    (verdict,) = verdicts(monitor, "spike")
    assert verdict.rows == ()
    assert f"check the samples of batch {BAD}" in verdict.advice


def test_a_nan_names_the_rows_whose_loss_is_not_finite(tmp_path):
    data = classes()
    data[BAD][0][ROW] = -1e6  # clamped, and then the logarithm of 0
    monitor, _ = monitored(tmp_path, data, sized(lambda: Does(lambda x: x.clamp(min=-50).add(50).log()), linear(8, 3)))
    (verdict,) = verdicts(monitor, "nonfinite")
    row, rows, usual = numbers(
        "row # has a loss of nan in cross_entropy() (median of # rows: #)", verdict.evidence.lower()
    )
    assert (row, rows, verdict.rows) == (ROW, 32, (ROW,))
    assert usual > 0


def test_a_nan_in_the_batch_names_the_rows_it_stands_in(tmp_path):
    data = classes()
    data[BAD][0][[2, ROW], 1] = math.nan
    monitor, _ = monitored(tmp_path, data)
    assert verdicts(monitor, "nonfinite")[0].rows == (2, ROW)


def in_transformers(folder, data, monitor):
    fit_in_transformers(folder, ForTransformers(language_model()), data, monitor, learning_rate=1e-2)


def in_lightning(folder, data, monitor):
    fit(folder, Predicts(language_model(), 1e-2), data, monitor)


@pytest.mark.parametrize("run", [in_lightning, in_transformers])
def test_the_sequence_with_a_spike_is_named_in_both_trainers_and_none_without_it(tmp_path, run):
    monitor, other = HealthMonitor(every_n_steps=4), HealthMonitor(every_n_steps=4)
    data = [torch.full((8, 12), 3) for _ in range(100)]  # of one token, so that the loss falls fast
    run(tmp_path / "without", data, other)
    assert not [verdict for verdict in other.verdicts if verdict.rows]
    data[90][ROW] = torch.arange(12) % 3
    run(tmp_path / "with", data, monitor)
    (verdict,) = verdicts(monitor, "spike")
    assert (verdict.batch_idx, verdict.rows) == (90, (ROW,))


def test_of_several_ranks_the_one_with_the_largest_loss_is_named():
    mild, bad = WorstRows("cross_entropy", (1,), (5.0,), 0.5, 8), WorstRows("cross_entropy", (2,), (9.0,), 0.5, 8)
    (loss, other) = mean_losses([[Loss(3, 3, 1.0, worst=mild), Loss(4, 4, 1.0)], [Loss(3, 3, 3.0, worst=bad)]])
    assert loss.worst.clause == "row 2 on rank 1 has a loss of 9 in cross_entropy() (median of 8 rows: 0.5)"
    assert (loss.value, other.value, other.worst) == (2.0, 1.0, None)
