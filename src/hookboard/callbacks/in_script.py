"""Inside a script that `hookboard run` has begun: gives its Trainers a `HealthMonitor`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookboard.base.messages import inform, warn
from hookboard.callbacks.health_monitor import HealthMonitor
from hookboard.health.rule import Verdict
from hookboard.loops.hugging_face import give_to_lightning, give_to_transformers

OPTIONS = json.loads(os.environ.get("HOOKBOARD_RUN", "{}"))
"""Those of `hookboard run`: `json`, `every_n_steps`, `stop_on` and `off`."""

_FIELDS = ("severity", "rule", "module", "since", "until", "evidence", "advice", "batch_idx", "rows")

_verdicts: dict[HealthMonitor, list[Verdict]] = {}
"""The verdicts of each monitor of this process."""


# `sitecustomize` calls these; what they raise is said, and training goes on.


def before_fit(trainer: Any) -> None:
    """Give a Lightning Trainer a `HealthMonitor`, unless it has one."""
    _give(give_to_lightning, trainer)


def before_train(trainer: Any) -> None:
    """Give a Trainer of Hugging Face a `HealthMonitor`, unless it has callbacks of hookboard."""
    _give(give_to_transformers, trainer)


def _give(giving: Callable[..., bool], trainer: Any) -> None:
    if giving(trainer, HealthMonitor, _new_monitor):
        inform("`hookboard run` added a HealthMonitor() to this Trainer.")


def _new_monitor() -> HealthMonitor:
    rules = ["*", *(f"!{rule}" for rule in OPTIONS.get("off", ()))]
    return _InScript(every_n_steps=OPTIONS.get("every_n_steps"), rules=rules, stop_on=OPTIONS.get("stop_on"))


class _InScript(HealthMonitor):
    """The monitor of a script: the checkpoints are as without it, and `--json` has its verdicts when a run ends."""

    def _saved(self) -> None:
        """Save nothing."""

    def end_run(self, loop: Any, has_failed: bool = False) -> None:
        """Also write the verdicts: not at exit, because processes that Lightning has started leave that out."""
        super().end_run(loop, has_failed)
        path = OPTIONS.get("json")
        if not path or not loop.is_rank_zero:
            return
        try:
            _verdicts[self] = [verdict.in_sentences() for verdict in self.verdicts]
            said = [{name: getattr(one, name) for name in _FIELDS} for each in _verdicts.values() for one in each]
            Path(path).write_text(json.dumps(said, indent=2), encoding="utf-8")
        except Exception as error:  # the disk may be full; the script goes on
            warn(f"the verdicts were not written ({type(error).__name__}: {error})")


_InScript.__name__ = HealthMonitor.__name__  # as it is called in messages
