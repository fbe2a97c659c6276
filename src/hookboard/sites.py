"""What is watched, and under which tag it appears."""

from dataclasses import dataclass
from typing import Literal

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

Stage = Literal["train", "validate", "test", "predict"]
"""Where a model runs, in Lightning's terms."""

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

    def scalar_tag(self, statistic: str, stage: Stage = "train") -> str:
        """The tag of one statistic.

        >>> Site("encoder.lstm", "output", "1/0").scalar_tag("std")
        'activation_std/encoder.lstm/1/0'
        >>> Site("head", "output").scalar_tag("std", "validate")
        'validate_activation_std/head'
        """
        return f"{_prefix(stage)}{KINDS[self.role]}_{statistic}/{self.path}"

    def histogram_tag(self, stage: Stage = "train") -> str:
        """The tag of the histogram.

        >>> Site("head", "grad_output").histogram_tag()
        'gradients/head'
        """
        return f"{_prefix(stage)}{KINDS[self.role]}s/{self.path}"


def _prefix(stage: Stage) -> str:
    return "" if stage == "train" else f"{stage}_"
