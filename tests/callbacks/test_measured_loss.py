"""The monitor writes the loss of each step that it measures, which the tab draws where the model logs none."""

import pytest
from toys import RecordsLoss, batches, fit, mlp, scalars

from hookboard import HealthMonitor
from hookboard.board.folders import open_folders

pytestmark = pytest.mark.trains


class Silent(RecordsLoss):
    """Logs nothing."""

    def log(self, *args, **named):
        pass


def drawn(folder):
    board, (name,) = open_folders([folder])
    return board.run(board.logged_run(name))["loss"]


def test_the_loss_of_each_measured_step_is_written_and_drawn_where_the_model_logs_none(tmp_path):
    fit(tmp_path, model := Silent(mlp()), batches(*[4] * 8), HealthMonitor(every_n_steps=4))
    values = [float(model.losses[step]) for step in (0, 3, 7)]
    assert list(scalars(tmp_path)["health/loss"].values()) == values
    assert drawn(tmp_path) == {"tag": "health/loss", "steps": [0, 3, 7], "values": values}


def test_a_loss_that_the_model_logs_is_drawn_instead(tmp_path):
    fit(tmp_path, RecordsLoss(mlp()), batches(*[4] * 8), HealthMonitor(every_n_steps=4), log_every_n_steps=1)
    assert drawn(tmp_path)["tag"] == "loss"
