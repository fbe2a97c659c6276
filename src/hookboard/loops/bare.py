"""`watch`: calls callbacks of hookboard in a training loop that the user has written, without a Trainer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter

from hookboard.base.checks import check, check_switches, check_whole, is_wrapped, several
from hookboard.base.messages import warn_switched_off
from hookboard.base.ranks import has_process_group
from hookboard.base.torch_private import parameters_in, unseen
from hookboard.loops.callback import HookboardCallback
from hookboard.loops.loop import Loop
from hookboard.loops.trainer import scaler_of_fabric
from hookboard.measure.hooked import hear_backward, unhear_backward


class BareLoop(Loop):
    """The `Loop` of a training loop that the user has written (`watch`); `should_stop` if a callback asks it to end."""

    stage = "train"
    is_running = is_accumulating = should_stop = False
    logged_step = 0

    @unseen
    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], loggers: Sequence[Any] = ()) -> None:
        super().__init__()
        self.model, self.scaler, self.loggers = unwrapped(model), scaler_of_fabric(optimizers), loggers
        self.optimizers = [unwrapped_optimizer(optimizer) for optimizer in optimizers]
        self.device = next((parameter.device for parameter in parameters_in(model).values()), torch.device("cpu"))
        self._batch_idx = {"train": 0, "validate": 0}
        self._has_stepped = False
        if has_process_group():
            self.world_size, self.is_rank_zero = dist.get_world_size(), dist.get_rank() == 0
        self.is_model_parallel = any(isinstance(parameter, DTensor) for parameter in parameters_in(self.model).values())

    @contextmanager
    def step(self, batch: Any = None, *, accumulates: bool = False) -> Iterator[None]:
        """Measure what runs inside the context: the forward and backward pass of one batch, and the optimizer step.

        Inside `evaluate` it is the forward pass of one batch.

        Args:
            batch: The batch. Some callbacks read its tensors; `HealthMonitor` finds them by itself if it is left out.
            accumulates: True if no optimizer step follows, because gradients are added to those of the next batch.
        """
        self.begin_step(batch, accumulates)
        try:
            yield
        except BaseException:  # KeyboardInterrupt too: the hooks of the batch must go
            self.leave_batch()
            raise
        self.end_step()

    def begin_step(self, batch: Any, accumulates: bool) -> None:
        """Begin a batch, see `step`."""
        self._count()
        self.is_accumulating = accumulates
        self.begin_batch(batch, self._batch_idx[self.stage])

    def end_step(self) -> None:
        """End the batch."""
        self.end_batch()
        self._batch_idx[self.stage] += 1
        self._has_stepped |= self.stage == "train" and not self.is_accumulating

    def _count(self) -> None:
        """Increase `logged_step` if an optimizer step was made since the last call; not inside `evaluate`."""
        # As in a Trainer, a validation that follows an optimizer step has the number of that step.
        if self.stage == "train":
            self.logged_step, self._has_stepped = self.logged_step + self._has_stepped, False

    @contextmanager
    def evaluate(self) -> Iterator[None]:
        """Measure a validation inside the context; each of its batches must run inside a `step`."""
        try:
            self.begin_evaluation()
            yield
            self.end_evaluation()
        finally:
            self.stage = "train"

    def begin_evaluation(self) -> None:
        """Begin a validation, see `evaluate`."""
        self.stage, self._batch_idx["validate"] = "validate", 0
        super().begin_evaluation()

    @contextmanager
    def running(self, callbacks: Sequence[HookboardCallback[Any]]) -> Iterator["BareLoop"]:
        """Begin the run of the callbacks and yield this loop; end the run afterwards, also after an error."""
        self.is_running = True
        with ExitStack() as until_end:
            until_end.callback(setattr, self, "is_running", False)
            until_end.callback(unhear_backward, self._hear_backward)
            for logger in self.loggers:
                until_end.callback(_save, logger)
            for _ in range(2):  # because Ctrl-C may come in the middle of the first
                until_end.push(lambda kind, *_: self.end_run(has_failed=kind is not None))
            for callback in callbacks:
                callback.start(self, ["train", "validate"])
            self.begin_training()
            hear_backward(self._hear_backward)
            self._listen(until_end)
            yield self
            self._count()
            self.end_epoch()
            self.end_training()

    def _listen(self, until_end: ExitStack) -> None:
        """Tell the steps of the optimizers to those in a batch, until `until_end` closes."""
        # For the whole run: what the user has compiled of a step is compiled anew whenever its hooks change.
        scaler = self.scaler
        if scaler is not None and scaler.is_enabled():
            # It skips an optimizer's step, and its hook, if gradients have overflowed.
            step = scaler.step
            patched = {name: value for name, value in vars(scaler).items() if name == "step"}

            def scaled_step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
                self._before_step(optimizer)
                return step(optimizer, *args, **kwargs)

            until_end.callback(vars(scaler).update, patched)  # the user's, or that of another `watch` around this one
            until_end.callback(vars(scaler).pop, "step", None)
            vars(scaler)["step"] = scaled_step
        else:
            # A function of its own: a copy of the optimizer shares it, while a bound method would copy the loop too.
            def hear_step(optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> Any:
                return self._hear_step(optimizer, args, kwargs)

            for optimizer in self.optimizers:
                until_end.callback(optimizer.register_step_pre_hook(hear_step).remove)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # compiled, it would be traced, with warnings
    def _before_step(self, optimizer: Optimizer) -> None:
        self.tell("_before_optimizer_step", optimizer)

    def _hear_step(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> Any:
        """Tell the step now, or if it has a closure, whenever that has been called: LBFGS does so several times."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._before_step(optimizer)
            return None

        def closure_heard() -> Any:
            loss = closure()
            self._before_step(optimizer)
            return loss

        return (optimizer,), {**kwargs, "closure": closure_heard}

    def _hear_backward(self, backward: Callable[[], None], losses: Sequence[Tensor]) -> None:
        """Run a backward pass, and tell the members before and after it; the loss if it is that of one alone."""
        if self.stage == "train":
            self.tell("_before_backward", losses[0] if len(losses) == 1 else None)
        backward()
        if self.stage == "train":
            self.tell("_after_backward")

    def stop(self) -> None:
        """Set `should_stop`, which the user's loop should check after each step."""
        self.should_stop = True


class WriterLogger:
    """Gives a `SummaryWriter` the attributes of a Lightning logger."""

    def __init__(self, writer: SummaryWriter) -> None:
        self.experiment, self.log_dir, self.save = writer, str(writer.log_dir), writer.flush


def watch(
    model: nn.Module,
    optimizers: Optimizer | Sequence[Optimizer],
    callbacks: HookboardCallback[Any] | Sequence[HookboardCallback[Any]],
    loggers: SummaryWriter | Logger | Sequence[SummaryWriter | Logger] = (),
    *,
    scaler: GradScaler | None = None,
    validates: bool = False,
    log_every_n_steps: int = 50,
) -> AbstractContextManager[BareLoop]:
    """Watch a training loop without a Trainer, in which callbacks log what they would log in a Trainer.

    What needs the `training_step` of a LightningModule is left out: `Checkup` does nothing.

    Args:
        model: The model. Tags use the names of its modules, without the prefix of a wrapper around it (Fabric,
            DistributedDataParallel or `torch.compile`).
        optimizers: The optimizer, or all of them.
        callbacks: A hookboard callback, or several.
        loggers: What to write to: a torch `SummaryWriter`, a Lightning logger, or several.
        scaler: The GradScaler, if there is one. Fabric's own need not be passed.
        validates: Whether the loop validates, inside `run.evaluate()`: pictures are taken there.
        log_every_n_steps: The cadence of callbacks without an `every_n_steps` of their own.

    Returns:
        A context manager; entering it returns an object with `step`, for each batch, and `evaluate`.

    Raises:
        ValueError: an argument is of the wrong kind, or `log_every_n_steps` is below 1; when the context is entered:
            the configuration of a callback does not fit the model.

    Examples:
        >>> from hookboard import HealthMonitor
        >>> model, monitor = nn.Sequential(nn.Linear(2, 1)), HealthMonitor(every_n_steps=1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> with watch(model, optimizer, [monitor]) as run:
        ...     for batch in torch.randn(3, 4, 2):
        ...         with run.step(batch):
        ...             model(batch).square().mean().backward()
        ...             optimizer.step()
        ...             optimizer.zero_grad()
        >>> monitor.verdicts
        ()
    """
    check("model", model, lambda value: isinstance(value, nn.Module), "a module")
    check("scaler", scaler, lambda value: isinstance(value, GradScaler), "a GradScaler", "if you use none")
    check_whole("log_every_n_steps", log_every_n_steps)
    check_switches(validates=validates)
    stepping = _all_of("optimizers", optimizers, Optimizer, "an optimizer")
    loop, callbacks = BareLoop(model, stepping, loggers_in(loggers)), callbacks_in(callbacks)
    loop.scaler, loop.has_validation, loop.log_every_n_steps = scaler or loop.scaler, validates, log_every_n_steps
    return loop.running(callbacks)


def _save(logger: Any) -> None:
    """Have a logger write what it holds back, as a Trainer does: a CSVLogger writes every 100 steps by itself."""
    try:
        logger.save()
    except Exception as error:  # the loggers after it are still to be saved
        warn_switched_off(f"saving what {type(logger).__name__} has logged", error)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside any wrappers of Fabric, `torch.compile` and DataParallel, also the distributed one."""
    inside = dict(nn.Module.named_children(model)).get("_orig_mod")
    if is_wrapped(model) or isinstance(model, DistributedDataParallel | DataParallel):
        inside = getattr(model, "module")  # noqa: B009  # typed as a tensor or a module
    return model if inside is None else unwrapped(inside)


def unwrapped_optimizer(optimizer: Any) -> Optimizer:
    """Return the optimizer inside the wrapper of Fabric, accelerate or Opacus; without one, the optimizer itself."""
    inside = (getattr(optimizer, name, None) for name in ("optimizer", "original_optimizer"))
    return next((inner for inner in inside if isinstance(inner, Optimizer)), optimizer)


def callbacks_in(value: Any) -> list[HookboardCallback[Any]]:
    """Return the callbacks that the argument `callbacks` holds, one or several; ValueError for anything else."""
    return _all_of("callbacks", value, HookboardCallback, "a hookboard callback")


def loggers_in(value: Any) -> list[Any]:
    """Return the argument `loggers` as a list, each `SummaryWriter` as a logger; ValueError for anything else."""
    loggers = _all_of("loggers", value, SummaryWriter | Logger, "a SummaryWriter, a Lightning logger")
    return [WriterLogger(logger) if isinstance(logger, SummaryWriter) else logger for logger in loggers]


def _all_of(option: str, value: Any, kind: Any, valid: str) -> list[Any]:
    """Check an argument as `several` does, but take an empty list too."""
    is_empty = isinstance(value, list | tuple) and not value
    return [] if is_empty else several(option, value, kind, f"{valid}, or a list of these")
