"""Inside a script that `hookboard run` has begun: gives its Trainers a `HealthMonitor`, or reads its first step."""

import atexit
import dataclasses
import gc
import json
import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from hookboard.base.messages import inform, warn
from hookboard.callbacks.health_monitor import HealthMonitor
from hookboard.loops import BareLoop, give_to_lightning, give_to_transformers
from hookboard.measure import hearing_backward
from hookboard.tracing import Findings, LiveStep

OPTIONS = json.loads(os.environ.get("HOOKBOARD_RUN", "{}"))
"""Those of `hookboard run`: `json`, `stop_on` and `off`."""

_ADVICE = """To have all steps and layers watched, add to the loop:
    from hookboard import HealthMonitor, watch
    with watch(model, optimizer, HealthMonitor(), SummaryWriter()) as run:
        for batch in loader:
            with run.step(batch):
                ...  # the step as it is"""

_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")
_FIELDS = ("severity", "rule", "module", "since", "until", "evidence", "advice", "batch_idx", "rows")


def before_fit(trainer: Any) -> None:
    """Give a Lightning Trainer a `HealthMonitor`, unless it has one."""
    _guarded(_give, give_to_lightning, trainer)


def before_train(trainer: Any) -> None:
    """Give a Trainer of Hugging Face a `HealthMonitor`, unless it has callbacks of hookboard."""
    _guarded(_give, give_to_transformers, trainer)


def before_optimizer(optimizer: Optimizer) -> None:
    """Read the first training step, unless it is a Trainer's: an optimizer is about to be made."""
    _guarded(_reader.wait, optimizer)


def _guarded(act: Callable[..., None], *given: Any) -> None:
    """Call a function; a fault of ours does not reach the script."""
    try:
        act(*given)
    except Exception as error:
        warn(f"the training is not watched: {type(error).__name__}: {error}")


def _give(giving: Callable[..., bool], trainer: Any) -> None:
    _reader.give_up()
    if giving(trainer, HealthMonitor, _new_monitor):
        inform("`hookboard run` has given this Trainer a HealthMonitor().")


_monitors: list[HealthMonitor] = []


def _new_monitor() -> HealthMonitor:
    rules = ["*", *(f"!{rule}" for rule in OPTIONS.get("off", ()))]
    monitor = HealthMonitor(rules=rules, stop_on=OPTIONS.get("stop_on"))
    monitor.state_dict = dict  # type: ignore[method-assign]  # the checkpoints of the script are as without us
    _monitors.append(monitor)
    return monitor


class _LoopReader:
    """Reads the first training step of a loop without a Trainer, from a forward pass to the step of an optimizer."""

    def __init__(self) -> None:
        self._until_end = ExitStack()
        self._live: LiveStep | None = None
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._is_over = self._is_stepped = False
        self.found: Findings | None = None

    def wait(self, optimizer: Optimizer) -> None:
        """Wait for the forward pass of a module that an optimizer trains, which may not be complete yet."""
        if not self._is_over and not self._optimizers:
            self._until_end.callback(register_module_forward_pre_hook(self._begin).remove)
        self._optimizers.append(weakref.ref(optimizer))

    def give_up(self) -> None:
        """Read nothing, or no further, and leave nothing behind."""
        self._is_over = True
        self._until_end.close()
        if self._live is not None:
            self._live.leave()
            self._live = None

    def _begin(self, module: nn.Module, args: Any) -> None:
        if module.training and torch.is_grad_enabled():
            _guarded(self._follow, module)

    def _follow(self, module: nn.Module) -> None:
        optimizers = [one for known in self._optimizers if (one := known()) is not None]
        trained = {id(one) for each in optimizers for group in each.param_groups for one in group["params"]}
        if trained.isdisjoint(map(id, module.parameters())):
            return
        self._until_end.close()  # the hook that has called this
        model = _holder_of(trained, module)
        if model is None:
            inform(f"the first training step was not read: no module has all that is trained. {_ADVICE}")
            return
        live = self._live = LiveStep(BareLoop(model, optimizers, [], [], None, False, 1))

        def hear(backward: Callable[[], None], losses: Any) -> None:
            if len(losses) == 1:
                live.before_backward(losses[0])
            backward()
            live.after_backward()

        self._until_end.enter_context(hearing_backward(hear))
        self._until_end.callback(register_optimizer_step_post_hook(self._stepped).remove)
        live.begin(None)

    def _stepped(self, optimizer: Any, args: Any, named: Any) -> None:
        # It ends where the next batch begins: while torch iterates over the hooks of an optimizer, none can be removed.
        if not self._is_stepped:
            self._is_stepped = True
            self._until_end.callback(register_module_forward_pre_hook(lambda *given: self.end()).remove)

    def end(self) -> None:
        """Say what was found, if there was a step."""
        live, self._live = self._live, None
        self._until_end.close()
        if live is not None and self._is_stepped:
            _guarded(self._say, live)

    def _say(self, live: LiveStep) -> None:
        facts = live.end()
        if facts is not None:
            self.found = Findings(one for one in facts.findings if one.rule not in OPTIONS.get("off", ()))
            inform(f"`hookboard run` has read the first training step. {self.found}\n{_ADVICE}")


_reader = _LoopReader()


def _holder_of(trained: set[int], called: nn.Module) -> nn.Module | None:
    """Return the module that was called if it has all these parameters, else the smallest that has; or None."""
    candidates = (one for one in gc.get_objects() if issubclass(type(one), nn.Module))  # whose `__class__` may be a lie
    for modules in ([called], candidates):
        having = [one for one in modules if trained <= {id(parameter) for parameter in one.parameters()}]
        if having:
            return min(having, key=lambda one: sum(1 for _ in one.modules()))
    return None


def _at_exit() -> None:
    """End the reading of a loop of one step, and write what was found, for `--json`."""
    _reader.end()
    path = OPTIONS.get("json")
    if not path or any(os.environ.get(rank, "0") != "0" for rank in _RANKS):  # the first process judges
        return
    found: list[Any] = [verdict.in_sentences() for monitor in _monitors for verdict in monitor.verdicts]
    found += [dataclasses.replace(one, since=0) for one in _reader.found or ()]
    said = [{name: getattr(one, name) for name in _FIELDS} for one in found]
    Path(path).write_text(json.dumps(said, indent=2), encoding="utf-8")


atexit.register(_at_exit)
