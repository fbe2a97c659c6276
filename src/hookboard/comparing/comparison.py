"""What `compare` returns: the differences, a table of all tensors, and how both are shown."""

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hookboard.base.prompts import MAX_ROWS, Markup, table_html
from hookboard.comparing.faults import Difference, in_words
from hookboard.comparing.running import Spot

SCALE = 1e-8, 1.0
"""The differences at the left and right end of a bar (a choice)."""


@dataclass(frozen=True)
class Row:
    """One tensor in the table.

    Args:
        as_is: its relative difference as the two models run, so with that of all earlier modules; NaN if unknown.
        alone: its relative difference if its module gets the left model's inputs.
        expected: the relative difference that rounding can cause.
    """

    spot: Spot
    as_is: float
    alone: float
    expected: float

    @property
    def distance(self) -> float:
        """The relative difference that is judged: `alone`; 0 if it is NaN."""
        return 0.0 if math.isnan(self.alone) else self.alone


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Args:
        differences: what differs by more than rounding, in the order of execution, backward after forward.
        rows: every tensor that was compared, in the order of execution.
        names: name in the right model -> name in the left model, for each module that was compared.
        notes: what was not compared, and what differs without an effect.
    """

    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]
    names: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Difference | None:
        """The first difference; None if all that was compared is equal up to rounding, or nothing was (no `rows`)."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        modules = len({row.spot.module for row in self.rows})
        said = f"{len(self.rows)} tensors of {modules} module{'s' * (modules != 1)} were compared"
        if not self.rows and self.first is None:
            lines = ["Nothing was compared: no tensor of one model has a counterpart in the other."]
        elif self.first is None:
            lines = [f"Equal up to rounding: {said}."]
        else:
            count = len(self.differences)
            lines = [f"{count} difference{'' if count == 1 else 's'}: {said}.", *map(str, self.differences)]
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])

    def __repr__(self) -> str:
        return str(self)

    def table(self) -> str:
        """Return a line for each tensor: its relative difference as it is and alone, and what rounding can cause."""
        width = max((len(str(row.spot)) for row in self.rows), default=0)
        lines = [f"{'':{width}}  as it is     alone  rounding"]
        lines += [
            f"{row.spot!s:{width}}  {row.as_is:8.1e}  {row.alone:8.1e}  {row.expected:8.1e}{self._mark(row)}"
            for row in self.rows
        ]
        return "\n".join(lines)

    def _mark(self, row: Row) -> str:
        return "  <-" if any(one.spot == row.spot for one in self.differences) else ""

    def _repr_html_(self) -> str:
        head = "".join(f"<p>{html.escape(line)}</p>" for line in str(self).splitlines())
        header = ["module", "tensor", "as it is", "alone", "rounding", "1e-8 to 1; line: rounding", ""]
        return f"{head}{table_html(header, [self._cells(row) for row in self._worst()])}"

    def _worst(self) -> list[Row]:
        """Return the row of each module that is farthest beyond rounding, in the order of execution.

        Of more than MAX_ROWS modules those that are farthest: equal ones must not hide the others.
        """
        worst: dict[str, Row] = {}
        for row in self.rows:
            before = worst.setdefault(row.spot.module, row)
            if self._rank(row) > self._rank(before):
                worst[row.spot.module] = row
        farthest = sorted(worst.values(), key=self._rank, reverse=True)[:MAX_ROWS]
        kept = {row.spot.module for row in farthest}
        return [row for name, row in worst.items() if name in kept]

    def _rank(self, row: Row) -> tuple[bool, float]:
        return bool(self._mark(row)), row.distance / max(row.expected, SCALE[0])

    def _cells(self, row: Row) -> list[str]:
        numbers = [f"{number:.1e}" for number in (row.as_is, row.alone, row.expected)]
        spot = replace(row.spot, module="")
        bar = _bar(row.distance, row.expected, "#d62728" if self._mark(row) else "#7f9fbf")
        tensor = str(spot).partition("(")[2].removesuffix(")")
        return [row.spot.module or "the whole model", tensor, *numbers, bar, self._mark(row).strip()]


def _bar(relative: float, expected: float, colour: str) -> Markup:
    """Return a bar as long as the logarithm of a difference, with a line at what rounding can cause."""
    title = html.escape(in_words(relative, expected))
    return Markup(
        f'<div title="{title}" style="position:relative;width:200px;max-width:30vw;height:10px;'
        'background:rgba(128,128,128,.15)">'
        f'<div style="width:{_percent(relative)}%;height:100%;background:{colour}"></div>'
        f'<div style="position:absolute;left:{_percent(expected)}%;top:-2px;width:2px;height:14px;'
        'background:currentColor;opacity:.6"></div></div>'
    )


def _percent(relative: float) -> int:
    """Return where a difference stands on the scale of bars.

    >>> [_percent(relative) for relative in (0.0, 1e-8, 1e-4, 1.0, float("inf"))]
    [0, 0, 50, 100, 100]
    """
    low, high = map(math.log10, SCALE)
    at = math.log10(min(max(relative, SCALE[0]), SCALE[1]))
    return round(100 * (at - low) / (high - low))
