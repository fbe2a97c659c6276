"""A comparison as a page in one file: the first difference in front, then both models in the order of execution."""

import html
import math

from hookboard.comparing.comparison import Comparison, Row, bar_of
from hookboard.comparing.faults import BEYOND_ROUNDING, Difference

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Hookboard</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 72em; margin: 0 auto; padding: 16px; font: 14px/1.45 Roboto, "Helvetica Neue", Arial, sans-serif;
  background: light-dark(#f5f5f5, #212121); color: light-dark(#212121, #f1f1f1); overflow-wrap: anywhere; }}
h1 {{ font-size: 20px; }}
a {{ color: light-dark(#1565c0, #8ab8ff); }}
.card {{ margin: 0 0 8px; padding: 10px 14px; border-left: 4px solid #7f9fbf; background: light-dark(#fff, #303030); }}
.card.fault {{ border-color: #d62728; }}
.card p {{ margin: 2px 0; }}
small, th {{ color: light-dark(#616161, #b0b0b0); }}
table {{ border-collapse: collapse; width: 100%; background: light-dark(#fff, #303030); }}
th, td {{ padding: 4px 8px; text-align: left; border-bottom: 1px solid rgba(128, 128, 128, .3); }}
th {{ font-weight: normal; }}
.number {{ text-align: right; white-space: nowrap; }}
tr:target, tr.fault {{ background: light-dark(#fdf0f1, #45292b); }}
@media (max-width: 700px) {{ .wide {{ display: none; }} }}
</style>
<h1>{title}</h1>
{cards}
<table><thead><tr><th>left<th class="{right}">right<th class="wide">tensor<th class="number">difference
<th class="number wide">rounding<th>1e-8 to 1; line: rounding</thead>
<tbody>{rows}</tbody></table>
<p><small>Each module's tensor that is farthest beyond rounding, in the order of execution. Red: a difference. Amber:
more than rounding, but it may come from a difference before it or inside it.</small></p>
</html>
"""


def comparison_page(found: Comparison, left: str, right: str) -> str:
    """Return the HTML of a page that needs no network and no script.

    Args:
        found: the comparison.
        left: what the left side is called.
        right: what the right side is called.
    """
    said, *_ = str(found).splitlines()
    cards = [_card(f"<p><b>{html.escape(said)}</b></p>")]
    cards += [_card(_told(one, left, right), "fault") for one in found.differences]
    cards += [_card(f"<p>Note: {html.escape(note)}.</p>") for note in found.notes]
    twins = {twin: own for own, twin in found.names.items()}
    right_column = "wide" if all(own == twin for own, twin in twins.items()) else ""  # a narrow screen has no room
    rows = (_row(row, twins.get(row.spot.module, ""), found, right_column) for row in found.worst())
    title = html.escape(f"{left} against {right}")
    return PAGE.format(title=title, cards="\n".join(cards), right=right_column, rows="\n".join(rows))


def _card(content: str, kind: str = "") -> str:
    return f'<div class="card {kind}">{content}</div>'


def _told(one: Difference, left: str, right: str) -> str:
    lines = [*filter(None, [one.in_numbers]), one.cause]
    if not math.isnan(one.found.left):
        where = f" at {one.found.index}" if one.found.index else ""
        lines.append(f"largest{where}: {one.found.left:.6g} in {left}, {one.found.right:.6g} in {right}")
    link = f'<a href="#row-{html.escape(one.module)}">{html.escape(str(one.spot))}</a>'
    return f"<p><b>{link}</b></p>" + "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _row(row: Row, twin: str, found: Comparison, right_column: str) -> str:
    name = row.spot.module
    is_fault = any(one.module == name for one in found.differences)
    is_beyond = row.distance > BEYOND_ROUNDING * row.expected
    colour = "#d62728" if is_fault else "#e6a23c" if is_beyond else "#7f9fbf"
    tensor = str(row.spot).rpartition(" (")[2].removesuffix(")")
    cells = [
        ("", html.escape(name or "the whole model")),
        (right_column, html.escape(twin or "the whole model")),
        ("wide", html.escape(tensor)),
        ("number", f"{row.distance:.1e}"),
        ("number wide", f"{row.expected:.1e}"),
        ("", bar_of(row.distance, row.expected, colour)),
    ]
    told = "".join(f'<td class="{kind}">{content}</td>' for kind, content in cells)
    return f'<tr id="row-{html.escape(name)}" class="{"fault" if is_fault else ""}">{told}</tr>'
