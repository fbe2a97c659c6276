"""`SiteWatch`: what a callback that measures holds of one stage, and the sites of which it had no reading."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hookboard.callbacks.layer_news import LayerNews
from hookboard.callbacks.scaling import Scaling
from hookboard.callbacks.watch import Watch
from hookboard.callbacks.weights import Before
from hookboard.hooks import Taps
from hookboard.parameters import Weight, why_silent
from hookboard.recording import Reading, Recorder
from hookboard.sites import ROLES, Role


@dataclass
class SiteWatch(Watch):
    """What a callback that measures holds of one stage.

    Args:
        recorder: measures the tensors of all sites.
        taps: the hooks on modules.
        weights: the watched weights by name.
        before: during a due step, copies of the weights before the optimizers stepped.
        gaps_are_named: whether the warning about sites without a reading has been given.
        scaling: the scale of the GradScaler; None without one.
        news: makes the record of the layers; all stages of a callback share it.
    """

    recorder: Recorder = field(kw_only=True)
    taps: Taps = field(kw_only=True)
    weights: dict[str, Weight] = field(default_factory=dict, kw_only=True)
    before: Before = field(default_factory=Before, kw_only=True)
    gaps_are_named: bool = field(default=False, kw_only=True)
    scaling: Scaling | None = field(default=None, kw_only=True)
    news: LayerNews = field(kw_only=True)


def gaps_of(
    watch: SiteWatch, expected: Iterable[tuple[str, Role]], readings: Iterable[Reading]
) -> Iterator[tuple[str, Role, str]]:
    """Name, role and cause of everything that should have been measured and was not."""
    measured = {(reading.site.name, reading.site.role): reading for reading in readings}
    for name, role in expected:
        reading = measured.get((name, role))
        if reading is None:
            yield name, role, _why_silent(watch, name, role)
        elif reading.is_empty:
            yield name, role, "every tensor was empty"


def _why_silent(watch: SiteWatch, name: str, role: Role) -> str:
    if watch.recorder.is_off(name, role):
        return "switched off, as a warning above says"
    if name in watch.weights and ROLES[role].of_parameter:
        return why_silent(watch.weights[name])
    return watch.taps.why_silent(name, role)
