"""What is watched, and under which tag it appears."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hookboard.suggest import unknown

Role = Literal[
    "input",
    "output",
    "grad_input",
    "grad_output",
    "parameter",
    "parameter_grad",
    "parameter_before",
    "parameter_update",
]

KINDS: dict[str, str] = {
    "output": "activation",
    "input": "input",
    "grad_output": "gradient",
    "grad_input": "input_gradient",
    "parameter": "parameter",
    "parameter_grad": "parameter_gradient",
    "parameter_update": "parameter",
}


MOMENTS_ONLY: frozenset[Role] = frozenset({"parameter_before", "parameter_update"})
"""Roles that serve the norm of an update: they have neither a histogram nor the user's own statistics."""


@dataclass(frozen=True, slots=True)
class Site:
    """One tensor slot that is watched.

    Args:
        name: the module's dotted name, or the parameter's.
        role: which of its tensors, in PyTorch's terms.
        index: the index or key of the tensor where a module takes or returns several, levels joined by a slash.
    """

    name: str
    role: Role
    index: str = ""

    @property
    def path(self) -> str:
        """The part of a tag that stands behind the first slash."""
        return f"{self.name}/{self.index}" if self.index else self.name

    def scalar_tag(self, statistic: str) -> str:
        """The tag of one statistic.

        >>> Site("encoder.lstm", "output", "1/0").scalar_tag("std")
        'activation_std/encoder.lstm/1/0'
        """
        return f"{KINDS[self.role]}_{statistic}/{self.path}"

    def histogram_tag(self) -> str:
        """The tag of the histogram.

        >>> Site("head", "grad_output").histogram_tag()
        'gradients/head'
        """
        return f"{KINDS[self.role]}s/{self.path}"


def resolve_roles(given: str | Sequence[str], valid: Sequence[Role]) -> list[Role]:
    """The roles that were given, as a list in the order of `valid`.

    Raises:
        ValueError: none is given, or one is not among `valid`.

    >>> resolve_roles("input", ["output", "input"])
    ['input']
    """
    roles = [given] if isinstance(given, str) else list(given)
    for role in roles:
        if role not in valid:
            raise unknown("role", role, valid)
    if not roles:
        raise ValueError(f"roles={given!r} watches nothing. Valid: {', '.join(valid)}.")
    return [role for role in valid if role in roles]


def warn_switched_off(what: str, error: Exception) -> None:
    """Say once that something is no longer measured or written, and why."""
    warnings.warn(
        f"hookboard: {what} is switched off for the rest of the fit, training goes on: {type(error).__name__}: {error}",
        stacklevel=2,
    )
