"""Recognizes what comes from Lightning. `lightning` and `pytorch_lightning` hold the same classes twice, unrelated."""

import sys
from collections.abc import Callable
from typing import TypeGuard, TypeVar

T = TypeVar("T")

PACKAGES = frozenset({"lightning", "lightning_fabric", "pytorch_lightning"})
"""The packages of Lightning: those of `pip install lightning`, and of `pip install pytorch_lightning`."""


def is_lightning(value: object, *classes: Callable[..., T]) -> TypeGuard[T]:
    """Return True if a value is an instance of one of these classes of `lightning`, or of its twin in another package.

    The classes are typed as callables because some are abstract.

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
