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


def wrong(option: str, given: object, valid: str, otherwise: str | None = None) -> ValueError:
    """Return the error for an invalid argument; `otherwise`, if not None, ends its hint "leave it out ...".

    >>> wrong("samples", 0, "a whole number, 1 or more")
    ValueError('samples=0: pass a whole number, 1 or more.')
    """
    end = "" if otherwise is None else f"; leave it out {otherwise}".rstrip()
    return ValueError(f"{option}={quoted(given)}: pass {valid}{end}.")


def check(option: str, given: Any, is_valid: Valid, valid: str, otherwise: str | None = None) -> None:
    """Check an argument; if `otherwise` is given (see `wrong`), None is valid too."""
    is_left_out = given is None and otherwise is not None
    if not is_left_out and not is_valid(given):
        raise wrong(option, given, valid, otherwise)


def check_switches(**given: object) -> None:
    """Check that arguments are True or False."""
    for option, value in given.items():
        check(option, value, lambda one: isinstance(one, bool | np.bool_), "True or False")


def check_whole(option: str, given: Any, least: int | None = 1, of: str = "", otherwise: str | None = None) -> None:
    """Check that an argument is a whole number of `of`; if `otherwise` is given (see `wrong`), None is valid too."""
    valid = f"a whole number{of and f' of {of}'}{'' if least is None else f', {least} or more'}"
    check(option, given, lambda one: is_whole(one) and (least is None or one >= least), valid, otherwise)


def check_number(
    option: str, given: Any, valid: str = "a number", is_valid: Valid = lambda one: True, otherwise: str | None = None
) -> None:
    """Check that an argument is a valid number, or None if `otherwise` is given; `is_valid` is called with NaN too."""
    check(option, given, lambda one: is_number(one) and is_valid(one), valid, otherwise)


def is_whole(given: object) -> bool:
    """Return True for an integer of Python or NumPy; bool does not count."""
    return isinstance(given, int | np.integer) and not isinstance(given, bool)


def is_number(given: object) -> bool:
    """Return True for a real number of Python or NumPy, including NaN and infinities."""
    return is_whole(given) or isinstance(given, float | np.floating)


def is_finite(given: Any) -> bool:
    """Return True for a real number that is neither NaN nor infinite."""
    return is_number(given) and bool(abs(given) < math.inf)


def check_text(**given: object) -> None:
    """Check that arguments are strings."""
    for option, value in given.items():
        check(option, value, lambda one: isinstance(one, str), "a string")


def check_identifier(option: str, given: object) -> None:
    """Check a name that becomes part of tags: letters, digits and underscores."""
    valid = "letters, digits and underscores, as in 'near_zero'"
    check(option, given, lambda one: isinstance(one, str) and one.isidentifier(), valid)


def check_function(option: str, given: object, valid: str) -> None:
    """Check that something can be called. A class cannot: most likely its parentheses were forgotten."""
    check(option, given, lambda one: callable(one) and not isinstance(one, type), valid)


def check_name(option: str, given: object, valid: Iterable[str]) -> None:
    """Check an argument that takes one of several names."""
    valid = list(valid)
    if not isinstance(given, str) or given not in valid:
        raise unknown(option, given, valid)


def chosen(option: str, given: str | Sequence[str], valid: Sequence[Name]) -> list[Name]:
    """Check an argument that takes one of the valid names or several; return them in the order of `valid`.

    >>> chosen("roles", "input", ["output", "input"])
    ['input']
    """
    names = several(option, given, object, f"one or more of {', '.join(valid)}")
    for name in names:
        check_name(option.removesuffix("s"), name, valid)
    return [name for name in valid if name in names]


def check_differ(option: str, given: object, names: Sequence[str]) -> None:
    """Check that no name occurs twice in `names`; the error quotes `given`, the argument that has the names."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{option}={quoted(given)}: {twice!r} is the name of two {option}; rename one.")


def check_list(option: str, given: Any, is_valid: Valid, valid: str, otherwise: str | None = None) -> None:
    """Check a list, or another sequence, with at least one element, each of which is valid."""
    check(option, given, lambda one: is_list(one) and len(one) > 0 and all(map(is_valid, one)), valid, otherwise)


def is_list(given: object) -> bool:
    """Return True for a list or another sequence, but not for strings, sets (their order varies) and iterators."""
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)


def several(option: str, given: Any, kinds: Any, valid: str, otherwise: str | None = None) -> list[Any]:
    """Check an argument that takes one value of these kinds or a list of them, not empty; return the list.

    >>> several("types", "Conv2d", str, "the name of a class, or several in a list")
    ['Conv2d']
    """
    found = list(given) if is_list(given) else [given]
    if not found or not all(isinstance(each, kinds) for each in found):
        raise wrong(option, given, valid, otherwise)
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
