"""How a step is made: precision, optimizers, gradients, and what else the step does."""

# ruff: noqa: N816 - the name of a circumstance is read as English

import functools
from collections.abc import Callable
from typing import Any

import torch
from combinations.case import (
    Batch,
    Case,
    Circumstance,
    OnPurposeError,
    Student,
    made_by,
    nothing,
    one_of,
    trained_with,
)
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn

single_precision = nothing("precision")


@one_of("precision")
def bfloat16_autocast(case: Case) -> None:
    case.options["precision"], case.is_half = "bf16-mixed", True


@one_of("precision")
def float16_with_a_GradScaler(case: Case) -> None:
    def plug_in(options: dict[str, Any]) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=2)
        options["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler=scaler)]

    case.configure.append(plug_in)
    case.is_half = True


double_precision = trained_with("precision", precision="64-true")


@one_of("precision")
def bfloat16_weights(case: Case) -> None:
    case.options["precision"], case.is_half = "bf16-true", True


# Optimizers.


SGD_with_momentum = nothing("optimizer")


@one_of("optimizer")
def AdamW_with_a_schedule(case: Case) -> None:
    def make(model: Student) -> Any:
        optimizer = torch.optim.AdamW(model.trained(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    case.optimizers = make


def optimized_by(make: Callable[[Student], Any]) -> Circumstance:
    return one_of("optimizer")(lambda case: setattr(case, "optimizers", make))


fused_AdamW = optimized_by(lambda model: torch.optim.AdamW(model.trained(), lr=0.01, fused=True))
LBFGS_with_its_closure = optimized_by(lambda model: torch.optim.LBFGS(model.trained(), lr=0.05, max_iter=3))


class Manual:
    """Manual optimization: backward, and a step of each optimizer, in the training step."""

    def __init__(self, case: Case, twice: bool = False) -> None:
        self.loss, self.twice = case.step, twice

    def __call__(self, model: Student, batch: Batch, index: int) -> Tensor | None:
        optimizers = model.optimizers()
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            loss = self.loss(model, batch, index)
            if loss is None:
                return None
            optimizer.zero_grad()
            model.manual_backward(loss)
            optimizer.step()
        return loss


def by_hand(model: Student) -> None:
    model.automatic_optimization = False


@one_of("optimizer")
def manual_optimization(case: Case) -> None:
    case.changes.append(by_hand)
    case.step = Manual(case)


@one_of("optimizer")
def two_optimizers_by_hand(case: Case) -> None:
    def make(model: Student) -> Any:
        head = {id(parameter) for parameter in model.head.parameters()}
        body = [parameter for parameter in model.trained() if id(parameter) not in head]
        return [torch.optim.Adam(body, lr=0.01), torch.optim.SGD(model.head.parameters(), lr=0.1)]

    case.changes.append(by_hand)
    case.optimizers = make
    case.step = Manual(case)


# What is done with gradients.


gradients_as_they_come = nothing("gradients")


gradients_accumulated_over_two_batches = trained_with("gradients", accumulate_grad_batches=2)


@one_of("gradients")
def gradients_accumulated_from_the_second_epoch_on(case: Case) -> None:
    case.others.append(lambda: GradientAccumulationScheduler({1: 3}))


gradients_clipped_by_norm = trained_with("gradients", gradient_clip_val=0.01)
gradients_clipped_by_value = trained_with("gradients", gradient_clip_val=0.001, gradient_clip_algorithm="value")
gradients_kept_as_zeros = made_by(
    "gradients",
    lambda model: setattr(
        model, "optimizer_zero_grad", lambda epoch, index, optimizer: optimizer.zero_grad(set_to_none=False)
    ),
)


# What else the step does.


one_loss = nothing("step")


def penalized_by(penalty: Callable[[Student, Batch, Tensor], Tensor]) -> Circumstance:
    return one_of("step")(lambda case: case.penalties.append(penalty))


@penalized_by
def a_gradient_penalty(model: Student, batch: Batch, loss: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return loss
    pictures = batch["pictures"].detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(pictures).float().sum(), pictures, create_graph=True)
    return loss + 0.1 * slope.square().mean()


@penalized_by
def the_model_called_twice_once_without_gradients(model: Student, batch: Batch, loss: Tensor) -> Tensor:
    with torch.no_grad():
        target = model(batch["pictures"].flip(0)).flip(0)
    return loss + (model(batch["pictures"]) - target).square().mean()


@one_of("step")
def a_batch_is_skipped(case: Case) -> None:
    case.step = functools.partial(_skips_second, case.step)


def _skips_second(step: Any, model: Student, batch: Batch, index: int) -> Tensor | None:
    loss = step(model, batch, index)
    return None if index == 1 else loss


@penalized_by
def one_batch_is_not_finite(model: Student, batch: Batch, loss: Tensor) -> Tensor:
    return loss * torch.where(batch["labels"][0] == batch["labels"].max(), torch.inf, 1.0)


@one_of("step")
def training_step_in_evaluation_mode(case: Case) -> None:
    def evaluate(step: Any, model: Student, batch: Batch, index: int) -> Tensor | None:
        model.net.eval()
        try:
            return step(model, batch, index)  # type: ignore[no-any-return]  # as the step does
        finally:
            model.net.train()

    case.step = functools.partial(evaluate, case.step)


class FailsFirst(nn.Module):
    """Raises at every other call."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = 0

    def forward(self, x: Tensor) -> Tensor:
        self.counted += 1
        if self.counted % 2:
            raise OnPurposeError("every other call")
        return x * 1.5


class TriesAgain(nn.Module):
    """Calls a module until it does not raise."""

    def __init__(self) -> None:
        super().__init__()
        self.part = FailsFirst()

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.part(x)  # type: ignore[no-any-return]  # torch does not say what modules return
        except OnPurposeError:
            return self.part(x)  # type: ignore[no-any-return]  # as above


@one_of("step")
def a_layer_that_raises_and_is_called_again(case: Case) -> None:
    def penalty(model: Student, batch: Batch, loss: Tensor) -> Tensor:
        return loss * model.again(model.head(model.net.out.bias)).mean()

    case.changes.append(lambda model: setattr(model, "again", TriesAgain()))
    case.penalties.append(penalty)


@penalized_by
def a_functional_call_with_other_weights(model: Student, batch: Batch, loss: Tensor) -> Tensor:
    weights = {name: parameter * 2 for name, parameter in model.head.named_parameters()}
    return loss + torch.func.functional_call(model.head, weights, (model.net.out.bias,)).square().mean()


@penalized_by
def a_call_in_inference_mode(model: Student, batch: Batch, loss: Tensor) -> Tensor:
    with torch.inference_mode():
        size = model(batch["pictures"]).abs().mean().item()
    return loss * (1 + size)
