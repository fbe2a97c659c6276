"""Callbacks and hooks of others."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from combinations.case import Case, Circumstance, Student, made_by, nothing, one_of
from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from torch import Tensor, nn

no_other_callback = nothing("callback of others")


IN_THE_MIDDLE = ("on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
"""There calls of the model count as part of the step."""


class RunsTheModel(Callback):
    """Runs the model at one place of a run, as callbacks do that draw samples."""

    def __init__(self, place: str) -> None:
        self.counts = place in IN_THE_MIDDLE
        setattr(self, place, self.sample)

    def sample(self, trainer: Trainer, pl_module: Student, *args: Any) -> None:
        was = pl_module.training
        pl_module.eval()
        with torch.no_grad(), pl_module.inside("train" if self.counts else ""):
            pl_module(5 + 100 * torch.rand(3, 2, 6, 4, dtype=pl_module.dtype))
        pl_module.train(was)


def beside(make: Callable[[], Callback]) -> Circumstance:
    return one_of("callback of others")(lambda case: case.others.append(make))


def runs_the_model(place: str) -> Circumstance:
    return beside(lambda: RunsTheModel(place))


a_callback_that_runs_the_model_at_the_start_of_a_batch = runs_the_model("on_train_batch_start")
a_callback_that_runs_the_model_before_the_backward_pass = runs_the_model("on_before_backward")
a_callback_that_runs_the_model_after_the_backward_pass = runs_the_model("on_after_backward")
a_callback_that_runs_the_model_before_the_optimizer_step = runs_the_model("on_before_optimizer_step")
a_callback_that_runs_the_model_at_the_end_of_a_batch = runs_the_model("on_train_batch_end")
a_callback_that_runs_the_model_at_the_end_of_an_epoch = runs_the_model("on_train_epoch_end")
a_callback_that_runs_the_model_at_the_start_of_validation = runs_the_model("on_validation_start")
a_callback_that_runs_the_model_at_the_end_of_validation = runs_the_model("on_validation_end")


stochastic_weight_averaging = beside(lambda: callbacks.StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1))


@one_of("callback of others")
def a_moving_average_of_the_weights(case: Case) -> None:
    if not hasattr(callbacks, "EMAWeightAveraging"):
        pytest.skip("EMAWeightAveraging came with lightning 2.6")
    case.others.append(lambda: callbacks.EMAWeightAveraging(decay=0.5))


a_callback_that_prunes = beside(
    lambda: callbacks.ModelPruning("l1_unstructured", amount=0.3, use_global_unstructured=True)
)


class Unfreezes(callbacks.BaseFinetuning):
    """Freezes the head, and trains it from the second epoch on."""

    def freeze_before_training(self, pl_module: LightningModule) -> None:
        self.freeze(pl_module.head)  # type: ignore[arg-type]  # a Student has one

    def finetune_function(self, pl_module: LightningModule, epoch: int, optimizer: torch.optim.Optimizer) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.head, optimizer, lr=0.01)  # type: ignore[arg-type]  # as above


a_callback_that_unfreezes_the_head = beside(Unfreezes)


@one_of("callback of others")
def a_search_for_the_learning_rate_before_the_fit(case: Case) -> None:
    case.changes.append(lambda model: setattr(model, "lr", 0.05))
    case.others.append(lambda: callbacks.LearningRateFinder(num_training_steps=3, update_attr=True))


class Copies(Callback):
    """Copies all callbacks and the model in the middle of the run."""

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        copy.deepcopy([each for each in trainer.callbacks if type(each).__module__.startswith("hookboard")])  # type: ignore[attr-defined]  # set outside its __init__
        copy.deepcopy(pl_module.head)(torch.ones(2, 3, dtype=pl_module.dtype))


a_callback_that_copies_callbacks_and_model = beside(Copies)


class Replaces(Callback):
    """Gives the model a new head after the first epoch, which nobody trains."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            pl_module.head = nn.Linear(3, 3, dtype=pl_module.dtype)


a_callback_that_replaces_the_head = beside(Replaces)


# Where it stands.


other_callbacks_before_ours = nothing("order")


other_callbacks_after_ours = one_of("order")(lambda case: setattr(case, "others_first", False))


# Hooks of others.


no_other_hooks = nothing("hooks of others")


def doubles(module: nn.Module, args: Any, output: Any) -> Any:
    return output * 2


def halves(module: nn.Module, args: Any) -> Any:
    return tuple(each * 0.5 for each in args)


a_hook_that_changes_outputs = made_by("hooks of others", lambda model: model.net.out.register_forward_hook(doubles))


@one_of("hooks of others")
def a_later_hook_that_changes_outputs(case: Case) -> None:
    case.late_hooks.append(lambda model: model.net.out.register_forward_hook(doubles))
    case.changed_later |= {("output", "net.out"), ("grad_output", "net.out")}


@one_of("hooks of others")
def a_hook_that_changes_inputs(case: Case) -> None:
    case.changes.append(lambda model: model.net.out.register_forward_pre_hook(halves))
    case.changed_later |= {("input", "net.out"), ("grad_input", "net.out")}


@one_of("hooks of others")
def a_later_hook_that_changes_inputs(case: Case) -> None:
    case.late_hooks.append(lambda model: model.net.out.register_forward_pre_hook(halves))
    case.changed_later |= {("input", "net.out"), ("grad_input", "net.out")}


@one_of("hooks of others")
def a_backward_hook_that_changes_gradients(case: Case) -> None:
    case.changes.append(lambda model: model.net.out.register_full_backward_hook(doubles_all))
    case.changed_later |= {("input", "net.out"), ("grad_input", "net.out"), ("grad_output", "net.out")}


def doubles_all(module: nn.Module, back: Any, given: Any) -> Any:
    return tuple(None if each is None else each * 2 for each in back)


def doubles_gradient(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


hooks_on_parameters = made_by(
    "hooks of others",
    lambda model: model.head.weight.register_hook(lambda grad: grad * 0.5),
    lambda model: model.head.bias.register_post_accumulate_grad_hook(doubles_gradient),
)
