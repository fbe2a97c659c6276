"""Inside a script that `hookboard run` has begun: gives its Trainers a `HealthMonitor`, or reads its first step."""

import atexit
import dataclasses
import gc
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from hookboard.base.messages import inform, silent, warn
from hookboard.base.rule_texts import more_on
from hookboard.base.torch_private import modules_in, parameters_in
from hookboard.callbacks.health_monitor import HealthMonitor
from hookboard.health.rule import rules_of
from hookboard.loops.bare import BareLoop
from hookboard.loops.hugging_face import give_to_lightning, give_to_transformers
from hookboard.measure.backward_calls import hear_backward, unhear_backward
from hookboard.tracing.audit import Findings
from hookboard.tracing.built_in import RULES
from hookboard.tracing.live_step import LiveStep

OPTIONS = json.loads(os.environ.get("HOOKBOARD_RUN", "{}"))
"""Those of `hookboard run`: `json`, `every_n_steps`, `stop_on` and `off`."""

READ = "`hookboard run` inspected the first training step."
_ADVICE = """To watch every step and layer, wrap the loop:
    from hookboard import HealthMonitor, watch
    from torch.utils.tensorboard import SummaryWriter
    with watch(model, optimizer, HealthMonitor(), SummaryWriter()) as run:
        for batch in loader:
            with run.step(batch):
                ...  # the step as it is"""

_STEPPING = sys.modules[Optimizer.__module__].__file__
_COMPILED = r"Using `torch\.compile\(module\)` when there are global hooks"

_FIELDS = ("severity", "rule", "module", "since", "until", "evidence", "advice", "batch_idx", "rows")

_found: dict[object, Sequence[Any]] = {}
"""The verdicts of each monitor of this process, and the findings in the first step of its loop."""


# `sitecustomize` calls these; what they raise is said, and training goes on.


def before_fit(trainer: Any) -> None:
    """Give a Lightning Trainer a `HealthMonitor`, unless it has one."""
    _give(give_to_lightning, trainer)


def before_train(trainer: Any) -> None:
    """Give a Trainer of Hugging Face a `HealthMonitor`, unless it has callbacks of hookboard."""
    _give(give_to_transformers, trainer)


def before_optimizer(optimizer: Optimizer) -> None:
    """Read the first training step, unless it is a Trainer's: an optimizer is about to be made."""
    _reader.wait(optimizer)


def _give(giving: Callable[..., bool], trainer: Any) -> None:
    _reader.give_up()
    if giving(trainer, HealthMonitor, _new_monitor):
        inform("`hookboard run` added a HealthMonitor() to this Trainer.")


def _asked() -> list[str]:
    return ["*", *(f"!{rule}" for rule in OPTIONS.get("off", ()))]


def _new_monitor() -> HealthMonitor:
    return _InScript(every_n_steps=OPTIONS.get("every_n_steps"), rules=_asked(), stop_on=OPTIONS.get("stop_on"))


def _guarded(act: Callable[..., Any], *given: Any) -> None:
    """Call a function; a fault of ours does not reach the script."""
    try:
        act(*given)
    except Exception as error:  # ours
        warn(f"training is not watched ({type(error).__name__}: {error})")


class _InScript(HealthMonitor):
    """The monitor of a script: the checkpoints are as without it, and `--json` has its verdicts when a run ends."""

    def _saved(self) -> None:
        """Save nothing."""

    def end_run(self, loop: Any, has_failed: bool = False) -> None:
        """Also write the verdicts: not at exit, because processes that Lightning has started leave that out."""
        super().end_run(loop, has_failed)
        if loop.is_rank_zero:
            _guarded(_write_json, self, [verdict.in_sentences() for verdict in self.verdicts])


_InScript.__name__ = HealthMonitor.__name__  # as it is called in messages


class _LoopReader:
    """Reads the first training step of a loop without a Trainer, from a forward pass to the step of an optimizer."""

    def __init__(self) -> None:
        self._until_end = ExitStack()
        self._live: LiveStep | None = None
        self._optimizers = weakref.WeakSet[Optimizer]()
        self._is_over = self._has_stepped = self._is_first = False
        self._thread: int | None = None
        """The thread of the loop; None until there is an optimizer."""

    def wait(self, optimizer: Optimizer) -> None:
        """Wait for the forward pass of a module that an optimizer trains, which may not be complete yet."""
        if self._is_over:
            return
        if self._thread is None:
            self._thread = threading.get_ident()
            self._at_forward(self._follow)
        self._optimizers.add(optimizer)

    def _is_here(self) -> bool:
        """Return False in another thread than that of the loop, and in code that is being compiled."""
        return not torch.compiler.is_compiling() and threading.get_ident() == self._thread

    def _at_forward(self, act: Callable[[nn.Module], None]) -> None:
        """Have a function called before each forward pass that is not compiled, without torch's warning of that."""

        def before(module: nn.Module, args: Any) -> None:
            if self._is_here():
                _guarded(act, module)

        self._until_end.enter_context(silent(_COMPILED))
        self._until_end.callback(register_module_forward_pre_hook(before).remove)

    def give_up(self) -> None:
        """Read nothing, or no further, and leave nothing behind."""
        self._is_over = True
        self._optimizers.clear()
        self._until_end.close()
        if self._live is not None:
            self._live.leave()
            self._live = None

    def _follow(self, module: nn.Module) -> None:
        """Begin to read with this call, if it trains parameters of an optimizer."""
        if not (module.training and torch.is_grad_enabled()):
            return
        optimizers = list(self._optimizers)
        trained = {id(one) for each in optimizers for group in each.param_groups for one in group["params"]}
        if trained.isdisjoint(map(id, parameters_in(module).values())):
            return
        self.give_up()  # the hook that has called this: the code that comes is compiled without it
        model = _holder_of(trained, module)
        if model is None:
            inform(
                "the first training step was not inspected because no single module holds all trained parameters. "
                f"Join them, as in model = nn.ModuleList([encoder, head]). {_ADVICE}"
            )
            return
        loop = BareLoop(model, optimizers)
        live, self._is_first = LiveStep(loop), loop.is_rank_zero
        self._live = live

        def hear(backward: Callable[[], None], losses: Sequence[Tensor]) -> None:
            if len(losses) == 1:
                live.before_backward(losses[0])
            backward()
            live.after_backward()

        def after_step(*_: Any) -> None:
            # It ends with the next forward pass: while torch iterates over an optimizer's hooks, none can be removed.
            if self._is_here() and not self._has_stepped:
                self._has_stepped = True
                self._at_forward(lambda module: self.end())

        self._until_end.callback(unhear_backward, hear)
        hear_backward(hear)
        self._until_end.callback(register_optimizer_step_post_hook(after_step).remove)
        live.begin(None, in_closure=any(frame.f_code.co_filename == _STEPPING for frame, _ in walk_stack(None)))

    def end(self) -> None:
        """Say what was found, if there was a step."""
        live, self._live = self._live, None
        self._until_end.close()
        if live is not None and self._has_stepped:
            self._say(live)
        elif self._thread is not None and not self._is_over:
            inform(
                "no training step was inspected because no module with trained parameters was called in training mode. "
                "Call model.train()."
            )

    def _say(self, live: LiveStep) -> None:
        has_failed, facts = live.is_over, live.end()  # where it has, it is said why
        if facts is not None and (facts.findings or not has_failed):
            asked = {rule.name for rule in rules_of(_asked(), RULES)}
            found = Findings(one for one in facts.findings if one.rule in asked)
            more = more_on(one.rule for one in found)
            inform("\n".join(filter(None, [f"{READ} {found}", more, _ADVICE])))
            if self._is_first:
                _write_json(self, [dataclasses.replace(one, since=0) for one in found])


_reader = _LoopReader()


def _holder_of(trained: set[int], called: nn.Module) -> nn.Module | None:
    """Return the module that was called if it has all these parameters, else the smallest that has; or None."""

    def has_all(module: nn.Module) -> bool:
        return trained <= set(map(id, parameters_in(module).values()))

    if has_all(called):
        return called
    # Some objects lie about their `__class__`, and some modules were never completed.
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and "_modules" in one.__dict__]
    return min(filter(has_all, modules), key=lambda one: len(modules_in(one)), default=None)


def _write_json(of: object, found: Sequence[Any]) -> None:
    """Write what was found for `--json`, over what another process of the script may have written."""
    _found[of] = found
    if path := OPTIONS.get("json"):
        said = [{name: getattr(one, name) for name in _FIELDS} for each in _found.values() for one in each]
        Path(path).write_text(json.dumps(said, indent=2), encoding="utf-8")


atexit.register(_guarded, _reader.end)  # of a loop of one step
