"""`Series`: one statistic of many layers, as the tab shows it in a map; which tags of a run are of hookboard."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from hookboard.sites import ROLES, Stage, Tag, read_scalar_tag

Scale = Literal["log", "linear"]

SCALES: dict[str, Scale] = {
    "std": "log",
    "rms": "log",
    "mean": "linear",
    "abs_max": "log",
    "abs_mean": "log",
    "zero_fraction": "linear",
    "nonfinite_count": "linear",
    "nan_count": "linear",
    "inf_count": "linear",
    "var": "log",
    "min": "linear",
    "max": "linear",
    "l1": "log",
    "l2": "log",
    "kurtosis": "log",
    "p01": "linear",
    "p50": "linear",
    "p99": "linear",
    "dead_fraction": "linear",
    "saturated_fraction": "linear",
    "underflow_fraction": "linear",
    "fp16_underflow_fraction": "linear",
    "headroom": "linear",
    "effective_rank": "linear",
    "update_norm": "log",
    "update_ratio": "log",
    "unchanged_fraction": "linear",
    "exp_avg_rms": "log",
    "exp_avg_sq_rms": "log",
    "momentum_buffer_rms": "log",
    "rms_t": "log",
}
"""Every built-in statistic, in the order in which the tab lists them, and how its values spread."""

QUANTITY_SCALES: dict[str, Scale] = {"dead_fraction": "linear", "sample_spread": "linear"}
"""Of the quantities of a `HealthRecord`, those that are shares; all others spread over magnitudes."""

DEFAULTS = ("health/activation_rms", "train/activation/std", "train/activation/rms")
"""What is shown first: the first of these that there is, otherwise the first series."""


@dataclass(frozen=True)
class Series:
    """One statistic of many layers.

    Args:
        id: its name in addresses.
        label: its name for people.
        stage: the stage.
        kind: the kind of tensor, see `RoleTraits.kind`; of a health record "health".
        statistic: the name of the statistic or quantity.
        scale: how its values spread.
        tags: of scalars, the tag of each row; empty for a health record.
    """

    id: str
    label: str
    stage: Stage
    kind: str
    statistic: str
    scale: Scale
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def of_parameters(self) -> bool:
        """Whether its rows are parameters, not modules."""
        return is_of_parameter(self.kind)


def is_of_parameter(kind: str) -> bool:
    """Whether tags of this kind name a parameter, not a module.

    >>> is_of_parameter("parameter_gradient")
    True
    """
    return kind in _KINDS_OF_PARAMETERS


def is_built_in(tag: str) -> bool:
    """Whether a tag is that of a built-in statistic.

    >>> is_built_in("activation_std/head"), is_built_in("input_size/train")
    (True, False)
    """
    said = read_scalar_tag(tag)
    return said is not None and said.statistic in SCALES


def read_tags(tags: Iterable[str], layers: Iterable[str] = ()) -> dict[str, Tag]:
    """Those tags of scalars that hookboard wrote, with what they say.

    Somebody's `input_size/train` looks like one of ours. So a statistic that is not built in counts only if some
    row of its name has a built-in one, or if it is that of a layer of hookboard's own record.

    Args:
        tags: the tags of a run.
        layers: the names of the layers in its records.
    """
    read = {tag: said for tag in tags if (said := read_scalar_tag(tag)) is not None}
    known = {said.path for said in read.values() if said.statistic in SCALES} | set(layers)
    return {tag: said for tag, said in read.items() if said.statistic in SCALES or said.path in known}


def series_of(read: Mapping[str, Tag]) -> dict[str, Series]:
    """The series of tags, by id, in the order of stages, kinds and statistics."""
    found: dict[tuple[str, str, str], Series] = {}
    for tag, said in read.items():
        key = (said.stage, said.kind, said.statistic)
        if key not in found:
            label = f"{said.kind} {said.statistic}".replace("_", " ")
            label = label if said.stage == "train" else f"{label} ({said.stage})"
            scale = SCALES.get(said.statistic, "linear")
            found[key] = Series("/".join(key), label, said.stage, said.kind, said.statistic, scale)
        found[key].tags[said.path] = tag
    return {one.id: one for one in sorted(found.values(), key=_order)}


def series_of_health(quantities: Iterable[str]) -> dict[str, Series]:
    """The series of a health record, by id."""
    return {
        (id := f"health/{quantity}"): Series(
            id, quantity.replace("_", " "), "train", "health", quantity, QUANTITY_SCALES.get(quantity, "log")
        )
        for quantity in quantities
    }


def default_of(series: Iterable[str]) -> str:
    """The id of the series that is shown first; "" if there is none."""
    ids = list(series)
    return next((id for id in DEFAULTS if id in ids), ids[0] if ids else "")


_KINDS = list(dict.fromkeys(traits.kind for traits in ROLES.values()))

_KINDS_OF_PARAMETERS = {traits.kind for traits in ROLES.values() if traits.of_parameter}


def _order(one: Series) -> tuple[int, int, int, str]:
    names = list(SCALES)
    place = names.index(one.statistic) if one.statistic in SCALES else len(names)
    return get_args(Stage).index(one.stage), _KINDS.index(one.kind), place, one.statistic
