"""Between due steps the hooks are off the modules, unless something is compiled."""

import pytest
from lightning.pytorch import Callback
from toys import EachStep, Toy, batches, fit, hooked, mlp

from hookboard import ActivationLogger, GradientLogger, HealthMonitor


class Hooks(Callback):
    """Which modules are hooked while each batch runs."""

    def __init__(self):
        self.at = []

    def on_before_backward(self, trainer, pl_module, loss):
        self.at.append(bool(hooked(pl_module)))


def hooks_of(folder, callback):
    seen = Hooks()
    fit(folder, Toy(mlp()), batches(*[4] * 9), callback, seen)
    return seen.at


@pytest.mark.parametrize("watching", [ActivationLogger, GradientLogger])
def test_only_the_first_batch_and_due_ones_run_with_hooks(tmp_path, watching):
    due = [False, False, False, True, False, False, False, True, False]
    assert hooks_of(tmp_path, watching(every_n_steps=4)) == [True, *due[1:]]


def test_health_monitor_hooks_modules_in_due_batches_alone(tmp_path):
    assert hooks_of(tmp_path, HealthMonitor(every_n_steps=4)) == [i in (0, 3, 7) for i in range(9)]


def test_batches_that_are_all_due_keep_their_hooks(tmp_path):
    assert all(hooks_of(tmp_path, ActivationLogger(every_n_steps=1)))


def test_an_evaluation_leaves_no_hooks_to_the_training(tmp_path):
    seen, evaluates = Hooks(), ActivationLogger(every_n_steps=100, stages=["train", "validate"])
    model = Toy(mlp())
    model.validation_step = model.training_step
    model.val_dataloader = lambda: batches(4, 4)
    fit(tmp_path, model, batches(*[4] * 4), evaluates, seen, val_check_interval=2, num_sanity_val_steps=1)
    assert seen.at == [True, False, False, False]


class CompilesLate(Callback):
    """Compiles the network before the third batch, which is not due."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 2:
            pl_module.net.compile(backend="aot_eager")


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The .grad:UserWarning")
def test_a_network_that_is_compiled_between_due_steps_is_measured_in_the_next_ones(tmp_path):
    found = []
    for others in ([], [CompilesLate()]):
        kept = EachStep(ActivationLogger(every_n_steps=4))
        fit(tmp_path, Toy(mlp()), batches(*[4] * 12), *others, kept.watched, kept)
        found.append([{r.site: pytest.approx(r.statistics, rel=1e-5) for r in readings} for readings in kept.readings])
    eager, compiled = found
    assert len(eager) == 3
    assert compiled == [{site: dict(v.expected) for site, v in each.items()} for each in eager]
