"""What other callbacks do with the model before or after a batch is no part of a step, wherever they stand."""

import copy
import functools
import pickle

import pytest
import torch
from lightning.pytorch import Callback
from toys import ALWAYS, Toy, batches, fit, hooked, images, loader, mlp, trainer

from hookboard import ActivationLogger, FeatureMapLogger, GradientLogger, HealthMonitor, ParameterLogger


class RunsTheModel(Callback):
    """Calls the model in one hook, forward and backward, on numbers that no batch has."""

    def __init__(self, hook):
        setattr(self, hook, self.run)
        self.runs = 0

    def run(self, trainer, pl_module, *args, **kwargs):
        self.runs += 1
        with torch.enable_grad():
            loss = pl_module.net(torch.full((5, 4), 1e6)).square().mean()
            torch.autograd.grad(loss, list(pl_module.net.parameters()))


@pytest.fixture(autouse=True)
def _a_logger_that_swallows(monkeypatch):
    # Without a logger nothing is measured, and the numbers are read from the callbacks.
    monkeypatch.setattr("hookboard.loops.callback.HookboardCallback.needs_logger", False)


def measured(*others, position="before", stages=("train", "validate"), **options):
    """The numbers of the last step or loop, by site and statistic."""
    ours = [
        ActivationLogger(roles=["output", "input"], stages=stages, every_n_steps=1),
        GradientLogger("net.2", roles=["grad_output", "grad_input", "parameter_grad"], every_n_steps=1),
        ParameterLogger(every_n_steps=1),
        HealthMonitor(every_n_steps=1),
    ]
    in_order = [*others, *ours] if position == "before" else [*ours, *others]
    fit(None, Toy(mlp()), batches(4, 4, 4), *in_order, num_sanity_val_steps=0, **options)
    return [{r.site: repr((r.stage, r.statistics, r.moments)) for r in callback.readings} for callback in ours]


@functools.cache
def measured_alone(**options):
    return measured(**options)


@pytest.mark.parametrize("position", ["before", "after"])
def test_a_callback_that_runs_the_model_after_a_training_batch_is_not_measured(position):
    runs = RunsTheModel("on_train_batch_end")
    assert measured(runs, position=position) == measured_alone()
    assert runs.runs == 3


@pytest.mark.parametrize("position", ["before", "after"])
@pytest.mark.parametrize("hook", ["on_validation_start", "on_validation_batch_end", "on_validation_end"])
def test_a_callback_that_runs_the_model_in_validation_is_not_measured(hook, position):
    runs = RunsTheModel(hook)
    assert measured(runs, position=position, limit_val_batches=2) == measured_alone(limit_val_batches=2)
    assert runs.runs > 0


def test_a_callback_that_runs_the_model_during_an_accumulation_is_not_measured():
    options = {"accumulate_grad_batches": 3}
    assert measured(RunsTheModel("on_train_batch_end"), **options) == measured(**options)


@pytest.mark.parametrize("position", ["before", "after"])
def test_feature_maps_are_those_of_the_batch(tmp_path, position):
    def shown(folder, *others):
        maps = FeatureMapLogger("net.0", stage="train", every_n_steps=1)
        fit(folder, Toy(mlp()), batches(4), *([*others, maps] if position == "before" else [maps, *others]))
        (picture,) = images(folder)["feature_maps/net.0"].values()
        return picture

    with_it, without = shown(tmp_path / "with", RunsTheModel("on_train_batch_end")), shown(tmp_path / "without")
    assert (with_it == without).all()


def test_parameters_are_measured_before_another_callback_changes_them():
    def double(trainer, pl_module, *args):
        with torch.no_grad():
            pl_module.net[2].weight.mul_(2)

    def after_one_step(other):
        watch = ParameterLogger("net.2", every_n_steps=1)
        fit(None, Toy(mlp()), batches(4), other, watch)
        return {r.site: r.statistics for r in watch.readings}

    doubles = Callback()
    doubles.on_train_batch_end = double
    assert after_one_step(doubles) == after_one_step(Callback())


def test_a_callback_in_two_runs_at_once_is_an_error():
    shared, model, inner = ActivationLogger(every_n_steps=1), Toy(mlp()), Toy(mlp())
    fits_another = Callback()
    fits_another.on_train_batch_end = lambda *args: fit(None, inner, batches(9, 9), shared)
    with pytest.raises(ValueError, match="ActivationLogger takes part in the run of another Trainer"):
        fit(None, model, batches(4, 4, 4), shared, fits_another)
    assert hooked(model) == hooked(inner) == []


def test_of_a_copied_trainer_the_copied_monitor_has_the_verdicts():
    given = HealthMonitor(rules=ALWAYS, window=1, every_n_steps=1)
    copied = copy.deepcopy(trainer(None, given))
    copied.fit(Toy(mlp()), loader(batches(4, 4)), loader(batches(4)))
    (monitor,) = [one for one in copied.callbacks if isinstance(one, HealthMonitor)]
    assert [one.rule for one in monitor.verdicts] == ["always"]
    assert given.verdicts == ()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_callbacks_that_are_copied_in_the_middle_of_a_batch_serve_another_trainer(copied):
    class Copies(Callback):
        def on_before_backward(self, trainer_, pl_module, loss):
            if not kept:
                kept.extend(copied([one for one in trainer_.callbacks if not isinstance(one, Copies)]))

    kept = []
    kinds = ActivationLogger, GradientLogger, ParameterLogger, FeatureMapLogger, HealthMonitor
    fit(None, Toy(mlp()), batches(4, 4), *(kind("net.0", every_n_steps=1) for kind in kinds), Copies())
    fit(None, Toy(mlp()), batches(9), *kept)
    (logger,) = [one for one in kept if isinstance(one, ActivationLogger)]
    assert logger.readings[0].moments.count == 9 * 8


def test_a_callback_whose_run_was_given_up_serves_another_trainer():
    shared = ActivationLogger(every_n_steps=1)
    model, left = Toy(mlp()), trainer(None, shared)
    left.strategy.connect(model)
    shared.on_fit_start(left, model)  # and nothing more comes of it
    fit(None, Toy(mlp()), batches(4), shared)
    assert shared.readings[0].moments.count == 4 * 8


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_end"])
def test_a_callback_that_is_added_during_the_run_is_not_measured(hook):
    runs = RunsTheModel("on_train_batch_end")

    def add(trainer_, *args):
        if runs not in trainer_.callbacks:
            trainer_.callbacks.append(runs)

    adds = Callback()
    setattr(adds, hook, add)
    assert measured(adds) == measured_alone()
    assert runs.runs > 0
