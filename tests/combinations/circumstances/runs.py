"""How the run goes: its validation, and how it ends."""

from typing import Any

import torch
from combinations.case import Case, Circumstance, OnPurposeError, Student, nothing, one_of, trained_with
from lightning.pytorch import Callback, Trainer
from torch import Tensor

no_validation = nothing("validation")
validation_after_each_epoch = trained_with("validation", limit_val_batches=2)
validation_after_each_batch = trained_with("validation", limit_val_batches=1, val_check_interval=1)
a_sanity_check_and_validation_after_two_batches = trained_with(
    "validation", limit_val_batches=2, val_check_interval=2, num_sanity_val_steps=1
)


@one_of("validation")
def validation_called_by_the_step(case: Case) -> None:
    """The network is evaluated in the middle of a training step."""

    def evaluates(model: Student, batch: Any, loss: Tensor) -> Tensor:
        was = model.net.training
        model.net.eval()
        with torch.no_grad():
            model(batch["pictures"])
        model.net.train(was)
        return loss

    case.penalties.append(evaluates)


# How the run ends.


to_the_end = nothing("end")


def fails_in(place: str, error: type[BaseException] = OnPurposeError) -> Circumstance:
    @one_of("end")
    def circumstance(case: Case) -> None:
        case.fails = error, place

    return circumstance


an_error_in_the_training_step = fails_in("training_step")
an_interrupt_in_the_training_step = fails_in("training_step", KeyboardInterrupt)


@one_of("end")
def an_error_inside_a_layer(case: Case) -> None:
    def add(model: Student) -> None:
        forward = model.head.forward

        def fails(x: Tensor) -> Tensor:
            model.reach("layer")
            return forward(x)

        model.head.forward = fails  # type: ignore[method-assign]  # of this one

    case.fails = OnPurposeError, "layer"
    case.changes.append(add)


an_error_in_the_configuration_of_optimizers = fails_in("configure_optimizers")


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, model: Student) -> Tensor:
        ctx.model = model
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.model.reach("backward")
        return grad, None


@one_of("end")
def an_error_in_the_backward_pass(case: Case) -> None:
    case.fails = OnPurposeError, "backward"
    case.penalties.append(lambda model, batch, loss: FailsBackward.apply(loss, model))


an_error_in_validation = fails_in("validation_step")


@one_of("end")
def an_error_in_the_optimizer(case: Case) -> None:
    def add(model: Student) -> None:
        model.on_before_zero_grad = lambda optimizer: model.reach("optimizer")  # type: ignore[method-assign]  # a hook

    case.fails = OnPurposeError, "optimizer"
    case.changes.append(add)


class Fails(Callback):
    def on_train_batch_end(self, trainer: Trainer, pl_module: Student, *args: Any) -> None:  # type: ignore[override]  # the model of a case
        pl_module.reach("callback")


@one_of("end")
def an_error_of_another_callback(case: Case) -> None:
    case.fails = OnPurposeError, "callback"
    case.others.append(Fails)


@one_of("end")
def resumed_from_a_checkpoint(case: Case) -> None:
    def go(run: Any) -> None:
        _, trainer = run.fit(trainer=run.trainer(max_epochs=1))
        path = case.folder / f"{run.kind}.ckpt"
        trainer.save_checkpoint(path)
        run.fit(checkpoint=path)

    case.go = go


@one_of("end")
def fitted_twice(case: Case) -> None:
    def go(run: Any) -> None:
        model, _ = run.fit(trainer=run.trainer(max_epochs=1))
        run.fit(model, run.trainer(max_epochs=1))

    case.go = go


@one_of("end")
def ended_by_should_stop(case: Case) -> None:
    class Stops(Callback):
        def on_train_batch_end(self, trainer: Any, model: Any, outputs: Any, batch: Any, index: int) -> None:
            if trainer.global_step >= 2:
                trainer.should_stop = True

    case.others.append(Stops)


@one_of("end")
def validated_tested_and_predicted_after_the_fit(case: Case) -> None:
    def go(run: Any) -> None:
        model, trainer = run.fit()
        trainer.validate(model, run.loader(run.held_out), verbose=False)
        trainer.test(model, run.loader(run.held_out), verbose=False)
        trainer.predict(model, run.loader(run.held_out))

    case.go = go
