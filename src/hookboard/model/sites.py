"""Sites (the tensor slots that are watched), their roles, and their tags."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

AttentionRole = Literal["attention_logit", "attention_entropy"]
PartRole = Literal[AttentionRole, "expert_tokens"]
ParameterRole = Literal["parameter", "parameter_grad", "parameter_before", "parameter_update"]
Role = Literal["input", "output", "grad_input", "grad_output", PartRole, ParameterRole]

Stage = Literal["train", "validate", "test", "predict"]  # in Lightning's terms

MODEL = "model"  # what tags call the model itself, whose name is empty: MLflow takes no tag that ends in a slash


@dataclass(frozen=True, slots=True)
class RoleTraits:
    """The properties of a role.

    Args:
        kind: its name in tags, of histograms in the plural; "" if nothing of it is logged.
        of_parameter: whether its tensors are parameters, their gradients or updates; others come with each call.
        moments_only: whether it has no histogram and none of the user's own statistics.
    """

    kind: str
    is_gradient: bool = False
    of_parameter: bool = False
    moments_only: bool = False


ROLES: dict[Role, RoleTraits] = {
    "output": RoleTraits("activation"),
    "input": RoleTraits("input"),
    "grad_output": RoleTraits("gradient", is_gradient=True),
    "grad_input": RoleTraits("input_gradient", is_gradient=True),
    "attention_logit": RoleTraits("attention_logit"),
    "attention_entropy": RoleTraits("attention_entropy"),
    "expert_tokens": RoleTraits(""),
    "parameter": RoleTraits("parameter", of_parameter=True),
    "parameter_grad": RoleTraits("parameter_gradient", is_gradient=True, of_parameter=True),
    "parameter_before": RoleTraits("parameter", of_parameter=True, moments_only=True),
    "parameter_update": RoleTraits("parameter", of_parameter=True, moments_only=True),
}

ATTENTION_ROLES: tuple[Role, Role] = get_args(AttentionRole)
"""What is measured inside `scaled_dot_product_attention`: the largest logit and the entropy of each sampled query."""

OF_PARTS: tuple[Role, ...] = get_args(PartRole)
"""Roles whose tensors have in their first dimension the parts that are measured: heads, or experts."""


class Site(NamedTuple):
    """One watched tensor of the model.

    Attributes:
        name: the dotted name of the module or of the parameter.
        role: which of its tensors, in PyTorch's terms.
        index: if the module has several tensors of this role, the index or key of this one, with nested levels joined
            by slashes. Otherwise "".
    """

    name: str
    role: Role
    index: str = ""  # type: ignore[assignment]  # which hides a method of tuples that nobody needs here

    @property
    def path(self) -> str:
        """The part of a tag after the first slash."""
        return "/".join(filter(None, (self.name or MODEL, self.index)))

    def scalar_tag(self, statistic: str, stage: Stage = "train") -> str:
        """Return the tag of one statistic.

        >>> Site("encoder.lstm", "output", "1/0").scalar_tag("std")
        'activation_std/encoder.lstm/1/0'
        >>> Site("head", "output").scalar_tag("std", "validate")
        'validate_activation_std/head'
        """
        return f"{_prefix(stage)}{ROLES[self.role].kind}_{statistic}/{self.path}"

    def histogram_tag(self, stage: Stage = "train") -> str:
        """Return the tag of the histogram.

        >>> Site("head", "grad_output").histogram_tag()
        'gradients/head'
        """
        return f"{_prefix(stage)}{_plural(ROLES[self.role].kind)}/{self.path}"


def _plural(kind: str) -> str:
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def _prefix(stage: Stage) -> str:
    return "" if stage == "train" else f"{stage}_"


@dataclass(frozen=True, slots=True)
class Tag:
    """The parts of a tag that hookboard has written: for `kind` see `RoleTraits`; `statistic` is "" for a histogram."""

    stage: Stage
    kind: str
    statistic: str
    path: str


def read_scalar_tag(tag: str) -> Tag | None:
    """Parse the tag of a scalar; None if hookboard does not write such tags.

    >>> read_scalar_tag("validate_input_gradient_std/encoder.lstm/1")
    Tag(stage='validate', kind='input_gradient', statistic='std', path='encoder.lstm/1')
    >>> read_scalar_tag("train/loss")
    """
    found = _SCALAR.fullmatch(tag)
    return found and Tag(cast(Stage, found[1] or "train"), found[2], found[3], found[4])


def read_histogram_tag(tag: str) -> Tag | None:
    """Parse the tag of a histogram; None if hookboard does not write such tags.

    >>> read_histogram_tag("gradients/head")
    Tag(stage='train', kind='gradient', statistic='', path='head')
    """
    found = _HISTOGRAM.fullmatch(tag)
    return found and Tag(cast(Stage, found[1] or "train"), _PLURALS[found[2]], "", found[3])


_STAGES = "|".join(get_args(Stage))
_PLURALS = {_plural(traits.kind): traits.kind for traits in ROLES.values() if traits.kind}
# Longest first, because `parameter_gradient` also begins with `parameter`.
_KINDS = "|".join(sorted(_PLURALS.values(), key=len, reverse=True))
_SCALAR = re.compile(rf"(?:({_STAGES})_)?({_KINDS})_([^/]+)/(.*)", re.DOTALL)
_HISTOGRAM = re.compile(rf"(?:({_STAGES})_)?({'|'.join(_PLURALS)})/(.*)", re.DOTALL)
