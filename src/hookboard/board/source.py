"""`Source`: what TensorBoard's data provider has, as plain columns; the same from its fast loader and its slow one."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tensorboard.data.provider import RunTagFilter
from tensorboard.errors import PublicError

from hookboard.board.curves import Curve, curve_of
from hookboard.board.refusal import RefusalError
from hookboard.messages import listed
from hookboard.record import LONGEST_NAME, PLUGIN

SCALARS, HISTOGRAMS, IMAGES = "scalars", "histograms", "images"
"""TensorBoard's own plugins whose data the tab reads."""

ALL = 1_000_000
"""More points than TensorBoard keeps of a tag: it is to choose none away, as it would not know which must be seen."""

TAGS_AT_ONCE = 1000
"""The fast loader takes no request above 4 MB, and names may have hundreds of letters."""


class Last(NamedTuple):
    """The last point of a tag.

    Args:
        step: its step.
        wall_time: when it was written, in seconds since 1970.
    """

    step: int
    wall_time: float


@dataclass(frozen=True)
class Source:
    """The data of one experiment, for one request.

    Args:
        provider: TensorBoard's data provider.
        context: TensorBoard's context of the request.
        experiment: the id of the experiment; "" for a log directory.
    """

    provider: Any
    context: Any
    experiment: str

    def runs(self) -> list[str]:
        """The names of all runs."""
        return [run.run_name for run in self._ask("list_runs") or ()]

    def last_scalars(self, run: str | None = None) -> dict[str, dict[str, Last]]:
        """Run to tag to its last point, of one run or of all.

        To list the tags would be the natural way, but the slow loader then goes through every point of them.
        """
        found = self._of_plugin("read_last_scalars", SCALARS, _filter(run))
        return {
            name: {tag: Last(point.step, point.wall_time) for tag, point in tags.items()}
            for name, tags in found.items()
        }

    def last_tensors(self, plugin: str = PLUGIN, run: str | None = None) -> dict[str, dict[str, Last]]:
        """The same for the tensors of a plugin: records or histograms."""
        found = self._of_plugin("list_tensors", plugin, _filter(run))
        return {
            name: {tag: Last(series.max_step or 0, series.max_wall_time or 0.0) for tag, series in tags.items()}
            for name, tags in found.items()
        }

    def scalars(self, run: str, tags: Collection[str]) -> dict[str, Curve]:
        """Tag to its curve. Tags that are not there are left out."""
        curves = {}
        for some in _portions(sorted(tags)):
            found = self._of_plugin("read_scalars", SCALARS, _filter(run, some), ALL)
            for tag, points in found.get(run, {}).items():
                curves[tag] = curve_of([p.step for p in points], [p.value for p in points])
        return curves

    def tensors(
        self, run: str, tags: Collection[str], plugin: str, most: int
    ) -> dict[str, list[tuple[int, np.ndarray]]]:
        """Tag to its last tensors with their steps.

        Args:
            run: the run.
            tags: the tags; those that are not there are left out.
            plugin: the plugin that owns them.
            most: how many of each tag; the last is always among them.

        Raises:
            RefusalError: what is stored for one of them is no tensor.
        """
        try:
            found = self._of_plugin("read_tensors", plugin, _filter(run, tags), most)
        except Exception as error:  # providers raise what the conversion of each sort of nonsense leads them to
            raise RefusalError(
                f"there is no tensor at {listed(map(repr, tags))} of run {run!r} ({error!r})."
            ) from error
        return {tag: [(p.step, p.numpy) for p in points] for tag, points in found.get(run, {}).items()}

    def picture_tags(self, run: str) -> list[str]:
        """The tags of all pictures."""
        return list(self._of_plugin("list_blob_sequences", IMAGES, _filter(run)).get(run, {}))

    def picture_keys(self, run: str, tags: Collection[str]) -> dict[str, list[tuple[int, list[str]]]]:
        """Tag to steps with the keys of their pictures."""
        found = self._of_plugin("read_blob_sequences", IMAGES, _filter(run, tags), ALL) if tags else {}
        # The first two are the width and the height.
        return {
            tag: [(p.step, [value.blob_key for value in p.values[2:]]) for p in points]
            for tag, points in found.get(run, {}).items()
        }

    def picture(self, key: str) -> bytes:
        """The bytes behind a key.

        Raises:
            RefusalError: there is no such key.
        """
        try:
            return bytes(self.provider.read_blob(self.context, blob_key=key))
        except Exception as error:  # a key is opaque: providers raise what its parts lead them to
            raise RefusalError(f"key={key!r}: there is no such picture ({error}).") from error

    def _of_plugin(
        self, method: str, plugin: str, wanted: RunTagFilter | None, most: int | None = None
    ) -> Mapping[str, Mapping[str, Any]]:
        options = {} if most is None else {"downsample": most}
        found = self._ask(method, plugin_name=plugin, run_tag_filter=wanted, **options) or {}
        return {run: {tag: one for tag, one in tags.items() if len(tag) <= LONGEST_NAME} for run, tags in found.items()}

    def _ask(self, method: str, **options: Any) -> Any:
        """What the provider answers; None if it lacks the method, or does not know the experiment or run."""
        ask = getattr(self.provider, method, None)
        try:
            return ask and ask(self.context, experiment_id=self.experiment, **options)
        except PublicError:
            return None


def _filter(run: str | None, tags: Collection[str] | None = None) -> RunTagFilter | None:
    return None if run is None else RunTagFilter(runs=[run], tags=tags)


def _portions(tags: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(tags), TAGS_AT_ONCE):
        yield tags[start : start + TAGS_AT_ONCE]
