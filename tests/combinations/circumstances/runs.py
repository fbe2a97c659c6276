"""How the run goes: its validation, and how it ends."""

from typing import Any

import torch
from combinations.case import Case, OnPurposeError, Student, one_of
from lightning.pytorch import Callback
from torch import Tensor


@one_of("validation")
def no_validation(case: Case) -> None:
    """Nothing is changed."""


@one_of("validation")
def validation_after_each_epoch(case: Case) -> None:
    case.options |= {"limit_val_batches": 2}


@one_of("validation")
def validation_after_each_batch(case: Case) -> None:
    case.options |= {"limit_val_batches": 1, "val_check_interval": 1}


@one_of("validation")
def a_sanity_check_and_validation_after_two_batches(case: Case) -> None:
    case.options |= {"limit_val_batches": 2, "val_check_interval": 2, "num_sanity_val_steps": 1}


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


@one_of("end")
def to_the_end(case: Case) -> None:
    """Nothing is changed."""


def fails_at(case: Case, place: str, error: type[BaseException], call: int = 3) -> None:
    """The run fails when it is at this place for the third time."""
    calls = []

    def fail(where: str) -> None:
        calls.extend([where] if where == place else [])
        if len(calls) == call:
            calls.append("once")
            raise error("on purpose")

    case.fails = fail


@one_of("end")
def an_error_in_the_training_step(case: Case) -> None:
    fails_at(case, "training_step", OnPurposeError)


@one_of("end")
def an_interrupt_in_the_training_step(case: Case) -> None:
    fails_at(case, "training_step", KeyboardInterrupt)


@one_of("end")
def an_error_inside_a_layer(case: Case) -> None:
    def add(model: Student) -> None:
        forward = model.head.forward

        def fails(x: Tensor) -> Tensor:
            case.fails("layer")
            return forward(x)

        model.head.forward = fails  # type: ignore[method-assign]  # of this one

    fails_at(case, "layer", OnPurposeError)
    case.changes.append(add)


@one_of("end")
def an_error_in_the_configuration_of_optimizers(case: Case) -> None:
    fails_at(case, "configure_optimizers", OnPurposeError, call=1)


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, case: Case) -> Tensor:
        ctx.case = case
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.case.fails("backward")
        return grad, None


@one_of("end")
def an_error_in_the_backward_pass(case: Case) -> None:
    fails_at(case, "backward", OnPurposeError)
    case.penalties.append(lambda model, batch, loss: FailsBackward.apply(loss, case))


@one_of("end")
def an_error_in_validation(case: Case) -> None:
    fails_at(case, "validation_step", OnPurposeError, call=1)


@one_of("end")
def an_error_in_the_optimizer(case: Case) -> None:
    def add(model: Student) -> None:
        model.on_before_zero_grad = lambda optimizer: case.fails("optimizer")  # type: ignore[method-assign]  # a hook

    fails_at(case, "optimizer", OnPurposeError)
    case.changes.append(add)


class Fails(Callback):
    def __init__(self, case: Case) -> None:
        self.case = case

    def on_train_batch_end(self, *args: Any) -> None:
        self.case.fails("callback")


@one_of("end")
def an_error_of_another_callback(case: Case) -> None:
    fails_at(case, "callback", OnPurposeError)
    case.others.append(lambda: Fails(case))


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
