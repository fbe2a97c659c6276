"""`Cache`: keeps what was slow to make, up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

Value = TypeVar("Value")


class Cache:
    """The values that were asked for last, each in its last version.

    Several threads may ask at once: a value is then made by one of them, while the others wait for it.

    Args:
        most_bytes: how much is kept. What alone is larger is made anew each time.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Hashable, Any, int]] = OrderedDict()
        self._lock = Lock()
        self._making: dict[Hashable, Lock] = {}

    def get(
        self, key: Hashable, version: Hashable, make: Callable[[], Value], size_of: Callable[[Value], int]
    ) -> Value:
        """The value of a key, made only if it is not there in this version.

        Args:
            key: what is asked for.
            version: its version; a value of another version is dropped.
            make: makes the value.
            size_of: its size, in bytes.
        """
        with self._lock:
            if (found := self._found(key, version)) is not None:
                return found[1]  # type: ignore[no-any-return]  # entries are of all types
            making = self._making.setdefault(key, Lock())
        with making:
            with self._lock:
                if (found := self._found(key, version)) is not None:
                    return found[1]  # type: ignore[no-any-return]  # entries are of all types
            try:
                value = make()
                self._keep(key, version, value, size_of(value))
                return value
            finally:
                with self._lock:
                    self._making.pop(key, None)

    def _found(self, key: Hashable, version: Hashable) -> tuple[Hashable, Any, int] | None:
        found = self._kept.get(key)
        if found is None or found[0] != version:
            return None
        self._kept.move_to_end(key)
        return found

    def _keep(self, key: Hashable, version: Hashable, value: object, size: int) -> None:
        with self._lock:
            self._drop(key)
            if size > self.most_bytes:
                return
            self._kept[key] = (version, value, size)
            self.bytes += size
            while self.bytes > self.most_bytes:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: Hashable) -> None:
        if key in self._kept:
            self.bytes -= self._kept.pop(key)[2]
