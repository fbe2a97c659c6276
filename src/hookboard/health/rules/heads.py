"""Attention whose logits grow, or whose heads all look at one key: a part of `activation_scale`."""

from collections.abc import Iterator

import numpy as np

from hookboard.health.look import Look
from hookboard.health.rule import Finding
from hookboard.health.rules.shared import harm_of, severity_of
from hookboard.health.run import Run
from hookboard.measure.row import FIELDS

LARGE_LOGIT = 100.0
"""A logit from which a head's attention may be too sharp: where Kimi K2 ("Open agentic intelligence", 2025) clips."""

LOGIT_GROWTH_FACTOR = 3.0
"""Factor by which the largest logit must exceed that of the first look (a choice)."""

ENTROPY_SHARE_LEFT = 0.5
"""Share of a head's entropy at the first look to which it must have fallen (a choice): what is added to all logits of a
query changes nothing but their size."""

COLLAPSED_ENTROPY = 0.01
"""Entropy, in nats, up to which a head looks at one key (a choice): it has more than 0.998 of the weight."""

ADVICE = "Normalize queries and keys (QK norm) or clip the logits, and check the attention scale and the learning rate."

_MEAN, _MAX, _COUNT = map(FIELDS.index, ("mean", "max", "count"))


def attention(run: Run) -> Iterator[Finding]:
    """Report attention with a head whose logits grow while its entropy falls, or whose heads all look at one key."""
    first = run.first or run.now
    for name in run.now.readings.places.names("attention_entropy"):
        logits, entropies = _of_heads(run.now, name)
        logits_before, entropies_before = _of_heads(first, name)
        if len(logits) != len(entropies) or len(logits_before) not in (1, len(logits)):
            continue
        grown = (logits >= LARGE_LOGIT) & (logits >= LOGIT_GROWTH_FACTOR * logits_before)
        grown &= entropies <= ENTROPY_SHARE_LEFT * entropies_before
        if grown.any():
            head = int(np.argmax(np.where(grown, logits, 0)))
            before = [float(np.broadcast_to(one, logits.shape)[head]) for one in (logits_before, entropies_before)]
            evidence = (
                f"its largest attention logit rose from {before[0]:.3g} at the first measurement to "
                f"{logits[head]:.3g} in head {head}, whose entropy fell from {before[1]:.2g} to "
                f"{entropies[head]:.2g}{harm_of(run)}."
            )
            yield Finding(name, evidence, ADVICE, severity_of(run), size=float(np.log10(logits[head] / LARGE_LOGIT)))
        elif entropies.max() <= COLLAPSED_ENTROPY and (
            run.losses.is_harmed or entropies_before.max() <= COLLAPSED_ENTROPY
        ):
            who = "its only head" if len(entropies) == 1 else f"each of its {len(entropies)} heads"
            evidence = (
                f"{who} attends to a single key: the entropy of its attention is at most {entropies.max():.2g}, with "
                f"logits up to {logits.max():.3g}{harm_of(run)}."
            )
            yield Finding(name, evidence, ADVICE, severity_of(run))


def _of_heads(look: Look, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest logit and the mean entropy (NaN for fewer than two keys) of each head, or of all as one."""
    logit, entropy = look.of(name, "attention_logit"), look.of(name, "attention_entropy")
    if logit is None or entropy is None:
        return np.array([np.nan]), np.array([np.nan])
    rows = [np.array([one.moments]) if one.channels is None else one.channels for one in (logit, entropy)]
    return rows[0][:, _MAX], np.where(rows[1][:, _COUNT] > 0, rows[1][:, _MEAN], np.nan)
