"""Checks of arguments that users pass: a ValueError names the argument, quotes its value, and says what is valid."""

import math
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard, TypeVar

import numpy as np

from hookboard.base.messages import quoted, unknown

Name = TypeVar("Name", bound=str)
T = TypeVar("T")
Valid = Callable[[Any], bool]


def wrong(option: str, value: object, valid: str, otherwise: str | None = None) -> ValueError:
    """Return the error for an invalid argument; `otherwise`, if not None, ends its hint "leave it out ...".

    >>> wrong("samples", 0, "a whole number, 1 or more")
    ValueError('samples=0: pass a whole number, 1 or more.')
    """
    end = "" if otherwise is None else f"; leave it out {otherwise}".rstrip()
    return ValueError(f"{option}={quoted(value)}: pass {valid}{end}.")


def check(option: str, value: Any, is_valid: Valid, valid: str, otherwise: str | None = None) -> None:
    """Check an argument; if `otherwise` is given (see `wrong`), None is valid too."""
    is_left_out = value is None and otherwise is not None
    if not is_left_out and not is_valid(value):
        raise wrong(option, value, valid, otherwise)


def check_switches(**options: object) -> None:
    """Check that arguments are True or False."""
    for option, value in options.items():
        check(option, value, lambda switch: isinstance(switch, bool | np.bool_), "True or False")


def check_whole(option: str, value: Any, least: int | None = 1, of: str = "", otherwise: str | None = None) -> None:
    """Check that an argument is a whole number of `of`; if `otherwise` is given (see `wrong`), None is valid too."""
    valid = f"a whole number{of and f' of {of}'}{'' if least is None else f', {least} or more'}"
    check(option, value, lambda number: is_whole(number) and (least is None or number >= least), valid, otherwise)


def check_number(
    option: str, value: Any, valid: str = "a number", is_valid: Valid = lambda _: True, otherwise: str | None = None
) -> None:
    """Check that an argument is a valid number, or None if `otherwise` is given; `is_valid` is called with NaN too."""
    check(option, value, lambda number: is_number(number) and is_valid(number), valid, otherwise)


def is_whole(value: object) -> bool:
    """Return True for an integer of Python or NumPy; bool does not count."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return True for a real number of Python or NumPy, including NaN and infinities."""
    return is_whole(value) or isinstance(value, float | np.floating)


def is_finite(value: Any) -> bool:
    """Return True for a real number that is neither NaN nor infinite."""
    return is_number(value) and bool(abs(value) < math.inf)


def check_text(**options: object) -> None:
    """Check that arguments are strings."""
    for option, value in options.items():
        check(option, value, lambda text: isinstance(text, str), "a string")


def check_identifier(option: str, value: object) -> None:
    """Check a name that becomes part of tags: letters, digits and underscores."""
    valid = "letters, digits and underscores, as in 'near_zero'"
    check(option, value, lambda name: isinstance(name, str) and name.isidentifier(), valid)


def check_function(option: str, value: object, valid: str) -> None:
    """Check that something can be called. A class cannot: most likely its parentheses were forgotten."""
    check(option, value, lambda function: callable(function) and not isinstance(function, type), valid)


def check_name(option: str, value: object, valid: Iterable[str]) -> None:
    """Check an argument that takes one of several names."""
    valid = list(valid)
    if not isinstance(value, str) or value not in valid:
        raise unknown(option, value, valid)


def chosen(option: str, value: str | Sequence[str], valid: Sequence[Name]) -> list[Name]:
    """Check an argument that takes one of the valid names or several; return them in the order of `valid`.

    >>> chosen("roles", "input", ["output", "input"])
    ['input']
    """
    names = several(option, value, object, f"one or more of {', '.join(valid)}")
    for name in names:
        check_name(option.removesuffix("s"), name, valid)
    return [name for name in valid if name in names]


def check_differ(option: str, value: object, names: Sequence[str]) -> None:
    """Check that no name occurs twice in `names`; the error quotes `value`, the argument that has the names."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{option}={quoted(value)}: {twice!r} is the name of two {option}; rename one.")


def check_list(option: str, value: Any, is_valid: Valid, valid: str, otherwise: str | None = None) -> None:
    """Check a list, or another sequence, with at least one element, each of which is valid."""
    check(option, value, lambda seq: is_list(seq) and len(seq) > 0 and all(map(is_valid, seq)), valid, otherwise)


def is_list(value: object) -> bool:
    """Return True for a list or another sequence, but not for strings, sets (their order varies) and iterators."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def several(option: str, value: Any, kinds: Any, valid: str, otherwise: str | None = None) -> list[Any]:
    """Check an argument that takes one value of these kinds or a list of them, not empty; return the list.

    >>> several("types", "Conv2d", str, "the name of a class, or several in a list")
    ['Conv2d']
    """
    found = list(value) if is_list(value) else [value]
    if not found or not all(isinstance(each, kinds) for each in found):
        raise wrong(option, value, valid, otherwise)
    return found


def object_at(path: str, kind: type[T], what: str) -> T:
    """Import the object at a dotted path, which must be of this kind; errors name it by `what` it is for the user.

    >>> object_at("math.pi", float, "number")
    3.141592653589793
    """
    try:
        found = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{what} {path!r} cannot be imported: {error}") from error
    if not isinstance(found, kind):
        raise ValueError(f"{what} {path!r} is a {type(found).__name__}, not a hookboard.{kind.__name__}.")
    return found


PACKAGES = frozenset({"lightning", "lightning_fabric", "pytorch_lightning"})
"""The packages of Lightning: those of `pip install lightning`, and of `pip install pytorch_lightning`."""


def is_lightning(value: object, *classes: Callable[..., T]) -> TypeGuard[T]:
    """Return True if a value is an instance of one of these classes of `lightning`, or of its twin in another package.

    >>> from lightning.pytorch import LightningModule
    >>> is_lightning(LightningModule(), LightningModule), is_lightning(3, LightningModule)
    (True, False)
    """
    names = {cls.__name__ for cls in classes}
    return any(
        base.__name__ in names and str(base.__module__).partition(".")[0] in PACKAGES for base in type(value).__mro__
    )


def is_wrapped(value: object) -> bool:
    """Return True for a model, an optimizer or a data loader that a Fabric of either package has set up."""
    packages = (sys.modules.get(f"{name}.wrappers") for name in ("lightning.fabric", "lightning_fabric"))
    return any(package.is_wrapped(value) for package in packages if package is not None)
