"""Imports objects that users name by a dotted path, as YAML must."""

import importlib
from typing import TypeVar

T = TypeVar("T")


def object_at(path: str, kind: type[T], what: str) -> T:
    """Import the object at a dotted path.

    Args:
        path: module and attribute, joined by a dot.
        kind: the class that it must be an instance of.
        what: what it is for the user, used in errors: "rule", "statistic".

    Raises:
        ValueError: the path cannot be imported, or the object is not a `kind`.

    >>> object_at("math.pi", float, "number")
    3.141592653589793
    """
    module, _, attribute = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{what} {path!r} cannot be imported: {error}") from error
    if not isinstance(found, kind):
        raise ValueError(f"{what} {path!r} is a {type(found).__name__}, not a hookboard.{kind.__name__}.")
    return found
