"""How the state of a judge is packed into a checkpoint, and restored: see `hookboard.packing`."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hookboard.health.judge import Case, Judge
from hookboard.health.look import Look, Loss, Stepped
from hookboard.health.losses import LossCurve
from hookboard.health.rule import Finding
from hookboard.health.rules.numerics import Nonfinite
from hookboard.health.run import RateJump, Run
from hookboard.health.run_table import RunTable, Silence
from hookboard.health.spikes import Spike
from hookboard.health.stage_comparison import Gap, Running, StageComparison
from hookboard.layers import Layer
from hookboard.packing import Codec, Codecs, dataclass_codec, object_codec
from hookboard.recording import FORMS as OF_READINGS

_OF_JUDGE = object_codec(lambda: Judge([], {}, 1), derived=("run", "_rules", "_names", "_verdicts"))


def parts_of(judge: Judge) -> dict[str, Any]:
    """Return the state of a judge: its run and its cases, without its rules. `restore_judge` takes it."""
    return {"run": judge.run, "cases": _OF_JUDGE.take(judge)}


def restore_judge(judge: Judge, parts: Mapping[str, Any], layers: Mapping[str, Layer]) -> None:
    """Set a new judge to the state of another one. If this raises, for parts that do not fit, `judge` is unchanged.

    Args:
        judge: has seen no look yet; has the same window and the same rules as the other.
        parts: the result of `parts_of`, as a checkpoint gives it back. Not to be used again: `judge` takes its run.
        layers: every layer that is watched from now on, by name. They may differ from those of the other judge.
    """
    run: Run = parts["run"]
    if {layer.name: layer for layer in run.layers} != layers:
        run.follow(layers)
    other = copy.copy(judge)
    _OF_JUDGE.make(parts["cases"])  # raises where there are others
    vars(other).update(parts["cases"], run=run, _verdicts=None)
    _ = other.verdicts  # raises here, not in the next step, where parts do not fit together
    vars(judge).update(vars(other))


def _parts_of_run(run: Run) -> dict[str, Any]:
    """Return the parts of a run; looks that are not among the latest lose their channels, which no rule asks for."""
    parts = dict(_OF_RUN.take(run)) | {"table": run.table.state_dict()}
    for name in ("first", "evaluation", "first_nonfinite"):
        look = parts[name]
        if look is not None and not any(look is other for other in run.looks):
            parts[name] = replace(look, readings=replace(look.table, channels=[None] * len(look.table)))
    return parts


def _made_run(parts: dict[str, Any]) -> Run:
    table = parts.pop("table")
    run: Run = _OF_RUN.make(parts)
    run.table = RunTable.of_parts(run.layers, table)
    run.make_arrays()
    return run


def _parts_of_look(look: Look) -> dict[str, Any]:
    return {**_OF_LOOK.take(look), "readings": look.table}


_REMADE = (
    "facts",
    "table",
    "arrays",
    "now",
    "latest",
    "initial",
    "_ordered_by",
)
_OF_RUN = object_codec(lambda: Run({}, 1), derived=_REMADE)
_OF_LOOK = dataclass_codec(Look)
_PLAIN = (Case, StageComparison, Gap, Layer, Loss, Nonfinite, RateJump, Running, Spike, Stepped, Finding)

FORMS: Codecs = {
    **OF_READINGS,
    **{cls: dataclass_codec(cls) for cls in _PLAIN},
    Look: Codec(_parts_of_look, _OF_LOOK.make),
    LossCurve: object_codec(LossCurve),
    Run: Codec(_parts_of_run, _made_run),
    Silence: object_codec(lambda: Silence(0)),
}
"""The form of every class that a judge keeps."""
