"""What Lightning keeps private still means what we take it for. A failure here says which function of ours to mend."""

from lightning.pytorch import Callback
from toys import Toy, batches, fit, mlp

from hookboard.loops.trainer import TrainerLoop


class Asks(Callback):
    def __init__(self):
        self.steps, self.accumulating = [], []

    def on_train_batch_end(self, trainer, *args):
        self.steps.append(TrainerLoop(trainer).logged_step)
        self.accumulating.append(TrainerLoop(trainer).is_accumulating)


def check(name, found, expected):
    assert found == expected, f"Lightning has changed what `TrainerLoop.{name}` relies on: mend that property."


def test_the_step_that_loggers_write_and_whether_it_is_still_to_come_are_known():
    asks = Asks()
    fit(None, Toy(mlp()), batches(4, 4, 4, 4), asks, accumulate_grad_batches=2)
    check("logged_step", asks.steps, [0, 0, 1, 1])
    check("is_accumulating", asks.accumulating, [True, False, True, False])
