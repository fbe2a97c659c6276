"""What a judge knows of a run, for what is packed into a checkpoint: see `hookboard.plain`."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hookboard.health.comparison import Comparison, Gap
from hookboard.health.judge import Case, Judge
from hookboard.health.layer_table import LayerTable
from hookboard.health.look import Look, Loss, Stepped
from hookboard.health.losses import LossCurve
from hookboard.health.nonfinite import Nonfinite
from hookboard.health.rates import RateJump
from hookboard.health.recent import Recent
from hookboard.health.run import Run
from hookboard.health.running import Running
from hookboard.health.silence import Silence
from hookboard.health.spikes import Spike
from hookboard.health.timeline import Timeline
from hookboard.health.verdict import Symptom
from hookboard.layers import Layer
from hookboard.plain import Form, Forms, form_of_dataclass, form_of_object
from hookboard.recording import FORMS as OF_READINGS

_OF_JUDGE = form_of_object(lambda: Judge([], {}, 1), derived=("run", "_rules", "_names", "_verdicts"))


def parts_of(judge: Judge) -> dict[str, Any]:
    """What a judge knows: the run and its cases; not the rules that it was given."""
    return {"run": judge.run, "cases": _OF_JUDGE.take(judge)}


def go_on(judge: Judge, parts: Mapping[str, Any], layers: Mapping[str, Layer]) -> None:
    """Have a judge that has seen nothing yet know what another one knew. If this raises, it is left as it is.

    Args:
        judge: has the same window and the same rules.
        parts: what `parts_of` gave.
        layers: every layer that is watched from now on, by name.
    """
    run: Run = parts["run"]
    before, silence = {layer.name: layer for layer in run.layers}, run.silence
    if before != layers:
        run.follow(layers)
        # Whether a layer may be trained says nothing of what its units have given.
        run.silence = {name: each for name, each in silence.items() if _gives_the_same(before[name], layers.get(name))}
    other = copy.copy(judge)
    _OF_JUDGE.make(parts["cases"])  # raises where there are others
    vars(other).update(parts["cases"], run=run, _verdicts=None)
    _ = other.verdicts  # raises here, not in the next step, where parts do not fit together
    vars(judge).update(vars(other))


def _gives_the_same(before: Layer, now: Layer | None) -> bool:
    return now is not None and (before.type, before.shapes) == (now.type, now.shapes)


def _parts_of_run(run: Run) -> dict[str, Any]:
    """All of a run; of looks that are not among the latest without the rows of channels, for which nobody asks."""
    parts = dict(_OF_RUN.take(run))
    for name in ("first", "evaluation", "first_nonfinite"):
        look = parts[name]
        if look is not None and not any(look is other for other in run.looks):
            parts[name] = replace(look, readings=look.table.without_channels())
    return parts


def _made_run(parts: dict[str, Any]) -> Run:
    run: Run = _OF_RUN.make(parts)
    run.table = LayerTable(run.layers)
    return run


def _parts_of_look(look: Look) -> dict[str, Any]:
    return {**_OF_LOOK.take(look), "readings": look.table}


_OF_RUN = form_of_object(lambda: Run({}, 1), derived=("why_silent", "table", "_sheet", "_first_sheet", "_ordered_by"))
_OF_LOOK = form_of_dataclass(Look)
_OF_SILENCE = form_of_object(lambda: Silence(0))
_PLAIN = (Case, Comparison, Gap, Layer, Loss, Nonfinite, RateJump, Running, Spike, Stepped, Symptom)

FORMS: Forms = {
    **OF_READINGS,
    **{cls: form_of_dataclass(cls) for cls in _PLAIN},
    Look: Form(_parts_of_look, _OF_LOOK.make),
    LossCurve: form_of_object(LossCurve),
    Recent: form_of_object(Recent),
    Run: Form(_parts_of_run, _made_run),
    # Once all units had a row, and a silence had no width.
    Silence: Form(_OF_SILENCE.take, lambda parts: _OF_SILENCE.make({"width": len(parts["looks"]), **parts})),
    Timeline: form_of_object(Timeline),
}
"""Of all that a judge knows."""
