"""What a prompt and a notebook show of a run: the headline, the verdicts, and the map of the activations."""

import base64
import html
from collections.abc import Sequence

from hookboard.health.folding import folded_verdicts
from hookboard.health.page import pictures
from hookboard.health.report import caveat, headline
from hookboard.health.rule import Verdict
from hookboard.health.run import Run

MAP = "health/activation_rms"


class Verdicts(tuple[Verdict, ...]):
    """Verdicts, worst first. A prompt shows a line for each, a notebook a paragraph."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "()"

    def _repr_html_(self) -> str:
        return f'<div style="max-width: 60em">{"".join(map(Verdict._repr_html_, self)) or "No verdicts."}</div>'


def cell(run: Run, verdicts: Sequence[Verdict]) -> str:
    """Return HTML for a notebook: the headline, the verdicts, and the heat map of activations if any was measured.

    It has no scripts, and all texts are escaped. Verdicts that are alike are shown as one, see `folded_verdicts`.
    """
    shown = folded_verdicts(verdicts, [layer.name for layer in run.layers])
    parts = [f"<p><b>{html.escape(headline(run, verdicts))}</b> {html.escape(caveat(verdicts))}</p>"]
    parts += map(Verdict._repr_html_, shown)
    picture = pictures(run, verdicts).get(MAP)
    if picture is not None:
        data, width, _ = picture.encode()
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        parts.append(f'<img src="{source}" width="{width}" style="max-width: 100%" alt="RMS of activations">')
    return f'<div style="max-width: 60em">{"".join(parts)}</div>'
