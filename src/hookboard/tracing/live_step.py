"""`LiveStep`: reads the first training step of a run. `StandingAside`: keeps it from disturbing what torch does."""

import functools
import inspect
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hookboard.base.messages import inform, warn
from hookboard.base.torch_private import (
    COMPILED_CALLERS,
    COMPILED_CODE,
    computing_plainly,
    parameters_in,
    remove_step_hooks,
)
from hookboard.health.rule import Finding
from hookboard.health.run import StepFacts
from hookboard.measure.hooked import as_own_call, hear_backward, unhear_backward
from hookboard.tracing.adapters import Adapter, adapters_of
from hookboard.tracing.bad_operation import Program
from hookboard.tracing.calls import Value
from hookboard.tracing.ledger import Ledger, any_not_zero
from hookboard.tracing.loss_rules import findings_of
from hookboard.tracing.optimizing import Outsider, findings_of_optimizers, outsiders
from hookboard.tracing.program import NotReadError, StepTrace
from hookboard.tracing.questions import QUESTIONS, Reader, alarms_first

_standing: "list[StandingAside]" = []
"""The one between `put` and `close`, if there is any: two traces would hide calls from each other."""


class StandingAside:
    """Takes a trace off the stack, between `put` and `close`, where it would change what runs."""

    def __init__(
        self, trace: StepTrace, at_backward: Callable[[Tensor], object], at_step: Callable[[Any, bool], object]
    ) -> None:
        self._trace, self._at_backward, self._at_step = trace, at_backward, at_step
        # Where torch finds a mode, layers in evaluation mode take a slower way, with other rounding.
        self._asking = Replaced(torch.overrides, "has_torch_function", functools.partial(_unseen, trace))
        self._replaced = [self._asking, Replaced(*COMPILED_CODE, self._around_compiled)]  # else compiled with the trace
        self._stepping: list[Any] = []
        self._until_stepped = ExitStack()

    def put(self) -> None:
        """Begin; NotReadError if another has. `close` takes back what is there, whatever ends this in the middle."""
        if _standing:
            raise NotReadError("another HealthMonitor inspects it")
        _standing.append(self)
        hear_backward(self._hear)
        self._hook()
        for replaced in self._replaced:
            replaced.put()

    def close(self) -> None:
        """End; a call after an interrupted one takes back the rest."""
        unhear_backward(self._hear)
        for one in reversed(self._replaced):
            one.take_back()
        self._unhook()
        self._until_stepped.close()
        _standing[:] = [one for one in _standing if one is not self]

    def _hear(self, backward: Callable[[], None], losses: Sequence[Tensor]) -> None:
        if not self._trace.is_over:
            for loss in losses:
                self._at_backward(loss)
        with self._trace.aside():
            backward()

    def _around_compiled(self, real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        trace, aside = self._trace, ExitStack()
        running: list[Any] = []  # the frame that runs compiled code; code inside of it begins and ends in between

        @functools.wraps(real)
        def told(callback: Any) -> Any:
            here = inspect.currentframe()
            frame = here and here.f_back
            if frame and threading.get_ident() == trace.thread and frame.f_code.co_name in COMPILED_CALLERS:
                if not running and callable(callback) and not trace.is_over:
                    running.append(frame)
                    trace.compiled_calls += 1
                    aside.enter_context(trace.aside())
                    aside.enter_context(self._away())
                elif running and running[0] is frame:
                    running.clear()
                    aside.close()
            return real(callback)

        return told

    # The trace is off the stack while an optimizer steps, unless it is given a closure, which runs the model.

    def _before(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return  # the hook is traced, not called
        has_closure = len(args) > 1 or kwargs.get("closure") is not None
        if threading.get_ident() == self._trace.thread and not self._trace.is_over:
            self._at_step(optimizer, has_closure)
        if threading.get_ident() == self._trace.thread and not has_closure and not self._stepping:
            self._stepping.append(optimizer)
            self._until_stepped.enter_context(self._trace.aside())

    def _after(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        is_here = threading.get_ident() == self._trace.thread
        if is_here and not self._trace.is_over and not torch.compiler.is_compiling():
            self._at_step(None, False)
        if self._stepping and self._stepping[0] is optimizer:
            self._stepping.clear()
            self._until_stepped.close()

    def _hook(self) -> None:
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def _unhook(self) -> None:
        remove_step_hooks(self._before, self._after)

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Take back what would be compiled too."""
        self._unhook()
        self._asking.take_back()
        try:
            yield
        finally:
            if not self._trace.is_over:
                self._hook()
                self._asking.put()


class Replaced:
    """Between `put` and `take_back`, a function is replaced by what `make` makes of it."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._owner, self._name = owner, name
        self._real = getattr(owner, name)
        self._made = make(self._real)

    def put(self) -> None:
        """Replace the function."""
        setattr(self._owner, self._name, self._made)

    def take_back(self) -> None:
        """Put it back, if it is still replaced by ours."""
        if getattr(self._owner, self._name) is self._made:
            setattr(self._owner, self._name, self._real)


def _unseen(trace: StepTrace, real: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(real)
    def told(relevant: Any) -> bool:
        if torch.compiler.is_compiling():  # of another thread; see `_around_compiled`
            return real(relevant)
        with trace.aside():
            return real(relevant)

    return told


MAX_TRIES = 3
"""A first batch without a backward pass is followed by another try, at most this many in all (a choice)."""

_SCALING = frozenset({"truediv", "div", "mul", "rmul", "mean"})  # by which a library scales a loss, or averages it


def ending_the_record(method: Callable[..., None]) -> Callable[..., None]:
    """Make a method of `LiveStep` do nothing while no step is read, and an error of it end the record, not the step."""

    @functools.wraps(method)
    def guarded(self: "LiveStep", *args: Any) -> None:
        reader = self._reader
        if reader is None:
            return
        try:
            computing_plainly(method)(self, reader, *args)
        except Exception as error:  # the user's step goes on
            reader.step.give_up(error)

    return guarded


class LiveStep:
    """Follows the first training step of a run, and judges each of its losses right before the backward pass.

    Call `before_backward` and `after_backward` around the backward passes that the loop announces, and `leave` when the
    run ends, whatever happens. Nothing here raises: an error of ours ends the reading, not the step.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._model: nn.Module = loop.model
        # Under automatic optimization Lightning tells the one loss; elsewhere there may be several in a batch.
        self._has_one_loss = loop.trainer is not None and getattr(loop.model, "automatic_optimization", True)
        self._reader: Reader | None = None
        self._aside: StandingAside | None = None
        self._ledger = Ledger(self._model)
        self._tries, self._has_failed = 0, False
        self._last: Callable[[], Tensor | None] = lambda: None
        self._findings: list[Finding] = []
        self._outside: list[Outsider] = []
        self._facts = StepFacts()
        self.programs: list[Program] = []  # the autograd nodes behind each loss so far, with layer and line
        self.adapters: list[Adapter] = []  # those that the calls so far show

    def begin(self, batch: Any) -> None:
        """Follow the batch that comes next; it is None if it is not known."""
        self.leave()
        self._tries += 1
        try:
            computing_plainly(self._follow)(batch)
        except Exception as error:  # the user's step runs, followed or not; so with all below
            self._say_not_read(error)
            self._has_failed = True
            self.leave()

    def _follow(self, batch: Any) -> None:
        self._reader = Reader(self._model, batch, self._hear)
        trace, self._ledger = self._reader.step, Ledger(self._model)
        groups = [group for optimizer in self._loop.optimizers for group in getattr(optimizer, "param_groups", ())]
        maximizing = {bool(group.get("maximize")) for group in groups}
        trace.is_maximized = None if len(maximizing) > 1 else True in maximizing
        self._aside = StandingAside(trace, self._hear, self._at_step)
        self._aside.put()
        trace.begin()

    def _hear(self, loss: Tensor) -> bool:
        """Judge a loss that the loop did not announce, if it depends on the model; True lets the backward pass run."""
        if not self._has_one_loss:
            self._judge_if_ours(loss)
        return True

    @ending_the_record
    def _judge_if_ours(self, reader: Reader, loss: Tensor) -> None:
        if reader.leads_to(loss):
            self.before_backward(loss)

    @ending_the_record
    def _at_step(self, reader: Reader, optimizer: Any, has_closure: bool) -> None:
        """Note that an optimizer is about to step; None once it has."""
        self._ledger.is_in_closure = has_closure
        if optimizer is not None:
            self._ledger.before_step(optimizer, reader.step.ops)

    def before_backward(self, loss: Tensor) -> None:
        """Judge what led to a loss whose backward pass comes next; no effect if that has been done for this loss."""
        reader = self._reader
        if reader is None or reader.step.is_over or self._last() is loss:
            return
        # Weakly: a tensor keeps its graph.
        self._last = weakref.ref(loss)
        as_own_call(self._judge, loss)
        if self._has_one_loss:
            reader.step.is_over = True
            self._stop()

    @ending_the_record
    def _judge(self, reader: Reader, loss: Tensor) -> None:
        with reader.step.aside():
            self._ask_all(reader, loss)

    def _ask_all(self, reader: Reader, loss: Tensor) -> None:
        value, factor = self._unscaled(reader.step.value_of(loss))
        done = reader.take_loss(loss, value, factor)
        self._findings += findings_of(done, QUESTIONS)
        self._ledger.before_backward(value, reader.step.ops)
        self._facts = reader.facts(self._facts.flow if len(reader.losses) > 1 else None)
        self.programs.append(reader.step.program_of(loss))
        self.adapters = adapters_of(reader.step)
        known = {outsider.number for outsider in self._outside if not outsider.is_gone()}
        self._outside += outsiders(reader.step, [weight for weight in reader.outside if id(weight) not in known])
        reader.outside.clear()  # the step may have made them for itself
        done.graph.let_go()
        reader.step.let_go()  # nothing of ours outlives the backward pass

    def _unscaled(self, value: Value) -> tuple[Value, float]:
        """Return the loss as the user's code computed it, and by what a library multiplied it since."""
        factor, scaler = 1.0, self._loop.scaler
        while (op := value.op) is not None and op.name in _SCALING and op.inputs:
            if op.place.file or op.place.module or op.inputs[0].shape not in ((), value.shape):
                break
            numbers = [argument for argument in op.arguments.values() if isinstance(argument, int | float)]
            if numbers or op.name == "mean":
                by = float(numbers[0]) if numbers else 1.0
            elif scaler is not None and op.name == "mul":  # its scale is a tensor, by which it multiplies last
                by, scaler = float(scaler.get_scale()), None
            else:  # a number of tokens, of which nothing is known here
                break
            factor *= by if op.name in ("mul", "rmul") else 1 / by
            value = op.inputs[0]
        return (value, factor) if factor and math.isfinite(factor) else (value, 1.0)

    @ending_the_record
    def after_backward(self, reader: Reader) -> None:
        """Note whether the backward pass has given any gradient that is not 0."""
        if not reader.losses or reader.step.fault is not None:
            return
        with reader.step.aside():
            self._ledger.after_backward()
            reader.set_aside_zeros()
            came = [p.grad for p in parameters_in(self._model).values() if p.requires_grad and p.grad is not None]
            # Where a gradient has come and is gone, a hook took it in the backward pass.
            if not reader.has_gradient and (came or not reader.reached):
                reader.has_gradient = any_not_zero(came)

    def end(self) -> StepFacts | None:
        """End the batch; return what is known of the step, or None if another batch is to be followed."""
        self._stop()
        reader = self._reader
        if reader is None:
            return StepFacts(findings=self._of_optimizers(None)) if self._has_failed else None
        if not reader.losses and reader.step.fault is None and self._tries < MAX_TRIES:
            self.leave()
            return None
        facts, found, reached = StepFacts(), list[Finding](), None
        try:
            if reader.step.fault is not None:
                self._say_not_read(reader.step.fault)
            elif reader.losses:
                found = self._found(reader)
                facts, reached = self._facts._replace(idle=reader.idle()), set(reader.reached)
                self._say_opaque(reader)
        except Exception as error:  # what is known of the optimizers is still worth saying
            self._say_not_read(error)
        found += self._of_optimizers(reached)
        self.leave()
        return facts._replace(findings=found)

    @computing_plainly
    def _found(self, reader: Reader) -> list[Finding]:
        """Return what was found, once all backward passes have run."""
        if not reader.step.compiled_calls:  # of which one may be an optimizer's step
            self._ledger.settle(reader.step.ops)
            self._findings += self._ledger.findings()
        assigned = (self._ledger.stepped or set()) - reader.reached
        if assigned:
            reader.reached |= assigned
            reader.has_gradient = None
        return alarms_first([*self._findings, *reader.cuts()])

    def _of_optimizers(self, reached: set[str] | None) -> list[Finding]:
        try:
            find = computing_plainly(findings_of_optimizers)
            return [*find(self._loop.optimizers, self._model, reached, self._outside)]
        except Exception as error:  # an optimizer may be anything that has a `step`
            warn(f"the optimizers were not inspected ({type(error).__name__}: {error})")
            return []

    def _say_not_read(self, error: Exception) -> None:
        if isinstance(error, NotReadError):
            inform(f"the training step was not inspected: {error}.")
        else:
            warn(f"the training step was not inspected ({type(error).__name__}: {error})")

    def _say_opaque(self, reader: Reader) -> None:
        if reader.step.compiled_calls:
            calls = f"{reader.step.compiled_calls} call{'s' * (reader.step.compiled_calls > 1)}"
            inform(f"the training step was inspected, except for {calls} of compiled code, which cannot be inspected.")
        if reader.step.not_asked:
            inform(
                "it was not tested whether outputs depend on other samples or on their own targets "
                f"({reader.step.not_asked})."
            )

    def _stop(self) -> None:
        """Take the trace off the stack, and everything back that was replaced for it."""
        if self._reader is not None:
            self._reader.step.leave()
        if self._aside is not None:
            self._aside.close()
            self._aside = None

    def leave(self) -> None:
        """Stop following, and drop all that is kept of the step."""
        self._stop()
        if self._reader is not None:
            self._reader.forget()
            self._reader = None
