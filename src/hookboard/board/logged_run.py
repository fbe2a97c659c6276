"""`LoggedRun`: which series, layers and verdicts the event files of a run hold, with those of fits that resumed it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Literal, get_args

import numpy as np

from hookboard.base.records import (
    HEALTH,
    LAYERS,
    LOSS,
    PLUGIN,
    HealthRecord,
    LayerFacts,
    LayersRecord,
    as_int64,
    health_record,
    layers_record,
)
from hookboard.board.source import LastPoint, Source, json_numbers
from hookboard.model.sites import MODEL, ROLES, Stage, Tag, read_scalar_tag


def joined(records: Iterable[object]) -> HealthRecord | None:
    """Join the health records among these, which are in the order in which they were written; None without one."""
    parts: list[HealthRecord] = []
    for record in records:
        if isinstance(record, HealthRecord):
            begin = min(record.steps, default=0)
            parts = [*(part for part in parts if min(part.steps, default=begin) < begin), record]
    return reduce(_joined_records, parts) if parts else None


def _joined_records(earlier: HealthRecord, later: HealthRecord) -> HealthRecord:
    """Join the record of a fit with that of the fit that resumed it, which alone counts from its first step on."""
    begin = min(later.steps)
    steps = tuple(step for step in earlier.steps if step < begin)
    verdicts, places = list(later.verdicts), dict[int, int]()
    again = {(verdict["rule"], verdict["module"]): place for place, verdict in enumerate(verdicts)}
    for place, verdict in enumerate(earlier.verdicts):
        since, until = verdict["since"] or 0, verdict["until"]
        lasts = until is None or until >= begin
        here = again.get((verdict["rule"], verdict["module"]))
        if here is not None and lasts:  # one verdict, which began in the earlier fit
            verdicts[here] = {**verdicts[here], "since": since}
        elif since < begin:
            places[place] = len(verdicts)
            verdicts.append({**verdict, "until": max(since, steps[-1]) if lasts else until})
    cards, texts = list(later.cards), list(later.texts)
    for i, card in enumerate(earlier.cards):
        groups = [[places[place] for place in group if place in places] for group in (card["alike"], *card["effects"])]
        alike, *effects = [group for group in groups if group] or [[]]
        if alike:
            cards.append({"alike": alike, "effects": effects})
            texts += earlier.texts[i : i + 1]
    layers = tuple(dict.fromkeys([*earlier.layers, *later.layers]))
    return replace(
        later,
        headline=f"{earlier.headline} {later.headline}",
        verdicts=tuple(verdicts),
        layers=layers,
        steps=steps + later.steps,
        values={
            name: np.hstack([_values(earlier, name, layers, steps), _values(later, name, layers, later.steps)])
            for name in {**earlier.values, **later.values}
        },
        cards=tuple(cards),
        shows=later.shows or earlier.shows,
        texts=tuple(texts),
    )


def _values(record: HealthRecord, quantity: str, layers: Sequence[str], steps: Sequence[int]) -> np.ndarray:
    """Return the values of a quantity for these layers and steps of the record; NaN where it has none."""
    rows, columns = {name: row for row, name in enumerate(layers)}, np.isin(record.steps, steps)
    values = np.full((len(layers), len(steps)), np.nan, np.float32)
    if quantity in record.values:
        values[[rows[name] for name in record.layers]] = record.values[quantity][:, columns]
    return values


Natural = tuple[tuple[bool, int, str], ...]


def natural_key(name: str) -> tuple[Natural, str]:
    """Return a sort key that orders numbers within names by value.

    >>> sorted(["layers.10", "layers.9", "head"], key=natural_key)
    ['head', 'layers.9', 'layers.10']
    """
    parts = re.split(r"([0-9]+)", name)
    # Python reads no number of more than 4,300 digits.
    return tuple((True, int(p), "") if i % 2 and len(p) < 4000 else (False, 0, p) for i, p in enumerate(parts)), name


def merged_order(orders: Iterable[Sequence[str]]) -> list[str]:
    """Merge lists of names into one; a name that is new in a later list follows the name before it there.

    >>> merged_order([["a", "b", "e"], ["b", "c", "d"], ["z"]])
    ['a', 'b', 'c', 'd', 'e', 'z']
    """
    result: list[str] = []
    for order in orders:
        places = {name: i for i, name in enumerate(result)}
        last, behind = len(result) - 1 if not set(order) & set(places) else -1, dict[int, list[str]]()
        for name in dict.fromkeys(order):
            if name in places:
                last = places[name]
            else:
                behind.setdefault(last, []).append(name)
        result = [*behind.get(-1, []), *(n for i, name in enumerate(result) for n in (name, *behind.get(i, [])))]
    return result


AxisScale = Literal["log", "linear"]

SCALES: dict[str, AxisScale] = {
    # scales: written by `python -m benchmarks.document`, because nothing here may import torch.
    "mean": "linear",
    "std": "log",
    "var": "log",
    "min": "linear",
    "max": "linear",
    "abs_max": "log",
    "abs_mean": "log",
    "rms": "log",
    "l1": "log",
    "l2": "log",
    "zero_fraction": "linear",
    "nonfinite_count": "linear",
    "nan_count": "linear",
    "inf_count": "linear",
    "p01": "linear",
    "p50": "linear",
    "p99": "linear",
    "dead_fraction": "linear",
    "underflow_fraction": "linear",
    "fp16_underflow_fraction": "linear",
    "headroom": "linear",
    # end of scales
    "update_norm": "log",
    "update_ratio": "log",
    "unchanged_fraction": "linear",
}
"""Every built-in statistic, and the scale that suits its values."""

FIRST_LISTED = ("std", "rms", "mean", "abs_max", "abs_mean", "zero_fraction", "nonfinite_count")
"""The statistics that the tab lists first; the others follow in the order of `SCALES`."""

QUANTITY_SCALES: dict[str, AxisScale] = {"dead_fraction": "linear", "sample_spread": "linear", "expert_share": "linear"}
"""The quantities of a `HealthRecord` that are shares; all others suit a logarithmic scale."""

DEFAULT_SERIES = ("health/activation_rms", "train/activation/std", "train/activation/rms")
"""The first of these that exists is shown first, otherwise the first series."""


@dataclass(frozen=True)
class Series:
    """One statistic of many layers."""

    id: str  # its name in URLs, such as "train/activation/std" or "health/dead_fraction"
    label: str  # its name in the tab, such as "activation std"
    stage: Stage
    kind: str  # of tensors, see `RoleTraits.kind`; "health" for a health record
    statistic: str
    scale: AxisScale
    tags: dict[str, str] = field(default_factory=dict)  # by layer or parameter; none for a health record


def read_tags(tags: Iterable[str], layers: Iterable[str] = ()) -> dict[str, Tag]:
    """Parse the scalar tags that hookboard wrote; skip all others."""
    read = {tag: said for tag in tags if (said := read_scalar_tag(tag)) is not None}
    # Another program's `input_size/train` looks like ours: a statistic that is not built in needs a built-in one at the
    # same path, or a layer of hookboard's own record there.
    known = {said.path for said in read.values() if said.statistic in SCALES} | set(layers)
    return {tag: said for tag, said in read.items() if said.statistic in SCALES or said.path in known}


def series_of(read: Mapping[str, Tag]) -> dict[str, Series]:
    """Group parsed tags into series: id, such as "train/activation/std", to series, by stage, kind and statistic."""
    found: dict[tuple[str, str, str], Series] = {}
    for tag, said in read.items():
        key = (said.stage, said.kind, said.statistic)
        if key not in found:
            label = f"{said.kind} {said.statistic}".replace("_", " ")
            label = label if said.stage == "train" else f"{label} ({said.stage})"
            scale = SCALES.get(said.statistic, "linear")
            found[key] = Series("/".join(key), label, said.stage, said.kind, said.statistic, scale)
        found[key].tags[said.path] = tag
    return {series.id: series for series in sorted(found.values(), key=_order)}


def series_of_health(quantities: Iterable[str]) -> dict[str, Series]:
    """Return a series for each quantity of a health record, by its id, such as "health/dead_fraction"."""
    found = {}
    for name in quantities:
        label = name.replace("weight", "weight and bias").replace("_", " ")
        id, scale = f"health/{name}", QUANTITY_SCALES.get(name, "log")
        found[id] = Series(id, label, "train", "health", name, scale)
    return found


def default_of(series: Iterable[str], health: HealthRecord | None = None) -> str:
    """Return the id of the series that the tab shows first, that of the first verdict if any; "" without a series."""
    ids = list(series)
    wanted = [f"health/{health.shows}"] if health else []
    return next((id for id in (*wanted, *DEFAULT_SERIES) if id in ids), ids[0] if ids else "")


_KINDS = list(dict.fromkeys(traits.kind for traits in ROLES.values()))

_KINDS_OF_PARAMETERS = {traits.kind for traits in ROLES.values() if traits.of_parameter}


def _order(series: Series) -> tuple[int, int, int, str]:
    names = list(dict.fromkeys([*FIRST_LISTED, *SCALES]))
    place = names.index(series.statistic) if series.statistic in SCALES else len(names)
    return get_args(Stage).index(series.stage), _KINDS.index(series.kind), place, series.statistic


def summary_of(
    source: Source, name: str, scalars: Mapping[str, LastPoint], records: Mapping[str, LastPoint]
) -> dict[str, Any]:
    """Return what a list of runs says of one, for JSON."""
    lasts, tag = [*scalars.values(), *records.values()], loss_tag(scalars)
    # Not the numbers of the record. Where it cannot be read, the warnings of the run itself say so.
    health = joined(_record(source, name, tag, has_values=False) for tag in health_tags(records))
    counted = Counter(verdict["severity"] for verdict in health.verdicts) if health else None
    return {
        "name": name,
        "token": token_of(scalars, records),
        "written": int(max(last.wall_time for last in lasts)),  # seconds since 1970
        "step": max(last.step for last in lasts),
        "loss": json_numbers([scalars[tag].value])[0] if tag else None,
        # None if HealthMonitor did not watch it, or its record cannot be read.
        "alarms": counted["alarm"] if counted is not None else None,
        "notes": counted["note"] if counted is not None else None,
        "is_over": health is not None and health.is_over,  # HealthMonitor has seen the end of the fit
    }


@dataclass(frozen=True)
class LoggedRun:
    """What the event files of a run hold, without the numbers."""

    name: str
    token: str  # changes with every new point
    series: dict[str, Series]
    layers: dict[str, LayerFacts]  # in the order in which they ran, or in natural order if that is unknown
    is_ordered: bool  # that order is known
    health: HealthRecord | None
    warnings: list[str]  # what could not be read, one sentence each
    owners: dict[str, str]  # parameter to the layer that owns it, as far as records tell

    def layer_of(self, path: str, kind: str = "") -> str:
        """Return the layer that the path of a tag of this kind belongs to, by the records, else by the path alone."""
        if kind in _KINDS_OF_PARAMETERS:
            return self.owners[path] if path in self.owners else path.rpartition(".")[0] or path
        head = path
        while head and head not in self.layers:  # a module may have a slash in its name
            head = head.rpartition("/")[0]
        first = path.partition("/")[0]
        return head or ("" if first == MODEL and "" in self.layers else first or path)

    @cached_property
    def rows(self) -> dict[str, list[str]]:
        """The names of the heat map's rows (layers, parameters or tensors), by id of the series, in execution order."""
        places = {name: i for i, name in enumerate(self.layers)}
        parameters = {name: i for layer in self.layers.values() for i, name in enumerate(layer.parameters)}

        def place(row: str, one: Series) -> tuple[int, int, Any]:
            return places[self.layer_of(row, one.kind)], parameters.get(row, len(parameters)), natural_key(row)

        return {
            one.id: sorted(one.tags, key=lambda row: place(row, one)) if one.tags else self._of_health(one.statistic)
            for one in self.series.values()
        }

    @cached_property
    def verdicts(self) -> list[dict[str, Any]]:
        """The verdicts, worst first, each with `names`: the layers besides its own that its evidence names."""
        return [{**one, "names": self._named_in(one)} for one in (self.health.verdicts if self.health else ())]

    def _named_in(self, verdict: Mapping[str, Any]) -> list[str]:
        """Return the layers, and the owners of the parameters, that the evidence of a verdict names."""
        found, said = dict[str, None](), verdict["evidence"].partition("(it follows from")[0]
        for word in re.finditer(r"[^\s,;:()'\"]+", said):
            name = word.group().rstrip(".")
            layer = name if name in self.layers else self.owners.get(name)
            if layer is None or layer == verdict["module"]:
                continue
            type_name = self.layers[layer].types[0].rpartition(".")[2] if self.layers[layer].types else None
            # A name that may be a number or an English word ("0.1", "head") counts only where it is marked as a name.
            before, after = said[: word.start()], said[word.end() :]
            is_marked = before.endswith(("'", "(in ")) or (type_name and after.startswith(f" ({type_name})"))
            if is_marked or (re.search(r"[^\W\d_]", name) and re.search(r"[._\d]", name)):
                found[layer] = None
        return list(found)

    def _of_health(self, quantity: str) -> list[str]:
        """Return the layers of the health record that have a value or a verdict: a sick one may have no value."""
        assert self.health is not None
        has_value = ~np.isnan(self.health.values[quantity]).all(axis=1)
        judged = {verdict["module"] for verdict in self.health.verdicts} - {""}
        return [n for n, has in zip(self.health.layers, has_value, strict=True) if has or n in judged]


def token_of(scalars: Mapping[str, LastPoint], records: Mapping[str, LastPoint]) -> str:
    """Return a text that changes with every new point, of any tag: TensorBoard may have loaded only some of a step."""
    lasts = [*scalars.values(), *records.values()]
    return f"{len(lasts)}-{sum(last.step for last in lasts)}-{sum(int(last.wall_time * 1e6) for last in lasts)}"


def read_run(
    source: Source, name: str, scalars: Mapping[str, LastPoint], records: Mapping[str, LastPoint]
) -> LoggedRun:
    """Read the layers, series and health record of a run; the values of scalars are read later."""
    layers_records, health, warnings = _records(source, name, records)
    orders = [*([health.layers] if health else []), *([f.name for f in r.layers] for r in layers_records)]
    facts = {layer: LayerFacts(layer) for layer in merged_order(orders)}
    for record in layers_records:
        for layer in record.layers:
            facts[layer.name] = _joined(facts[layer.name], layer)
    owners = {parameter: layer.name for layer in facts.values() for parameter in layer.parameters}
    read = read_tags(scalars, [layer or MODEL for layer in facts])
    series = series_of_health(health.values if health else ()) | series_of(read)
    run = LoggedRun(name, token_of(scalars, records), series, facts, bool(orders), health, warnings, owners)
    rest = {run.layer_of(row, one.kind) for one in series.values() for row in one.tags} - facts.keys()
    facts |= {name: LayerFacts(name) for name in sorted(rest, key=natural_key)}  # layers of which only tags tell
    return run


def is_of_hookboard(scalars: Iterable[str], records: Iterable[str]) -> bool:
    """Return True if a run with these tags has data for the hookboard tab: a record or a built-in statistic."""
    return any(map(_is_record, records)) or any(
        said.statistic in SCALES for tag in scalars if (said := read_scalar_tag(tag))
    )


def health_tags(records: Mapping[str, LastPoint]) -> list[str]:
    """Return the tags of the health records of a run, one for each of its fits, in the order of their last points."""
    return sorted(filter(_is_of_health, records), key=lambda tag: records[tag].wall_time)


def _records(
    source: Source, run: str, records: Mapping[str, LastPoint]
) -> tuple[list[LayersRecord], HealthRecord | None, list[str]]:
    """Read the records of a run, and return warnings about those that cannot be read."""
    wanted = [*health_tags(records), *sorted(tag for tag in records if tag.startswith(f"{LAYERS}/"))]
    read = [_record(source, run, tag) for tag in wanted]
    layers = [record for record in read if isinstance(record, LayersRecord)]
    return layers, joined(read), [record for record in read if isinstance(record, str)]


def _record(source: Source, run: str, tag: str, has_values: bool = True) -> LayersRecord | HealthRecord | str:
    """Read the last record of a tag; return a sentence if it cannot be read."""
    try:
        points = source.tensors(run, [tag], PLUGIN, 1).get(tag)
        strings = np.ravel(points[-1][1]).tolist() if points else []
        if not _is_of_health(tag):
            return layers_record(strings)
        record = health_record(strings, has_values)
        return replace(record, verdicts=tuple(map(_verdict, record.verdicts)))
    except Exception as error:  # damaged fields, or those of another program, may raise anything
        return f"The record {tag!r} cannot be read ({type(error).__name__}: {error}); everything else is shown."


def _is_record(tag: str) -> bool:
    return _is_of_health(tag) or tag.startswith(f"{LAYERS}/")


def _is_of_health(tag: str) -> bool:
    return tag == HEALTH or tag.startswith(f"{HEALTH}/")


def _verdict(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields of a verdict to the types that the page expects."""
    words = {name: str(verdict.get(name, "")) for name in ("severity", "rule", "module", "evidence", "advice")}
    numbers = {name: verdict.get(name) for name in ("since", "until", "batch_idx")}
    steps = {name: None if number is None else as_int64(number) for name, number in numbers.items()}
    cause = verdict.get("follows_from")
    rows = tuple(map(as_int64, verdict.get("rows") or ()))
    return words | steps | {"follows_from": tuple(str(part) for part in cause)[:2] if cause else None, "rows": rows}


def _joined(known: LayerFacts, other: LayerFacts) -> LayerFacts:
    """Merge two records of a layer: types and output of the first that has them, the parameters of both."""
    return replace(
        known,
        types=known.types or other.types,
        output=known.output if known.output is not None else other.output,
        parameters={**known.parameters, **other.parameters},
        frozen=(*(name for name in known.frozen if name not in other.parameters), *other.frozen),
    )


def loss_tag(tags: Mapping[str, LastPoint]) -> str:
    """Return the tag that most likely is the training loss, rather the user's than HealthMonitor's; "" without one.

    >>> loss_tag({"val_loss": LastPoint(9, 0.0), "train/loss": LastPoint(9, 0.0), "lr": LastPoint(9, 0.0)})
    'train/loss'
    """
    losses = [tag for tag in tags if re.search(r"(?<![a-z])loss(?![a-z])", tag.lower()) and not read_scalar_tag(tag)]

    def rank(tag: str) -> tuple[bool, bool, bool, int, str]:
        is_other = re.search(r"(?<![a-z])(val|valid|validate|validation|test|eval)(?![a-z])", tag.lower())
        return bool(is_other), tag == LOSS, "train" not in tag.lower(), len(tag), tag

    return min(losses, key=rank, default="")
