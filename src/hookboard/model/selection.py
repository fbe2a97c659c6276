"""Selects modules by patterns and types."""

import pydoc
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from torch import nn
from torchmetrics import Metric

from hookboard.base.checks import PACKAGES, several
from hookboard.base.messages import unknown
from hookboard.base.torch_private import modules_in, parameters_in
from hookboard.model.patterns import EXCLUDE_PREFIX, matched, parted

Patterns = str | Sequence[str]
Types = str | type | Sequence[str | type]

WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
PARAMETRIZATIONS = "parametrizations"


class NothingToSelectError(ValueError):
    """The user gave neither patterns nor types, and the model has nothing to select by default."""


def select(
    root: nn.Module,
    modules: Patterns | None = None,
    types: Types | None = None,
    *,
    owning: Literal["forward", "parameters"] = "forward",
) -> dict[str, nn.Module]:
    """Return the submodules that the patterns and types select, by (their first) name, in the model's order.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU()))
    >>> list(select(net, "**", types="Conv2d"))
    ['0', '2.0']
    """
    named = dict(named_submodules(root))
    if owning == "parameters" or _is_leaf("", root):
        named = {"": root, **named}
    patterns, kinds = check_selection(modules, types)
    (wanted_names, unwanted_names), (wanted_types, unwanted_types) = parted(patterns), parted(kinds)
    chosen = set(named).difference(
        *(_names_matching(pattern, named) for pattern in unwanted_names),
        *(_names_of_type(kind, named) for kind in unwanted_types),
    )
    if wanted_names:
        chosen &= set().union(*(_names_matching(pattern, named) for pattern in wanted_names))
    if wanted_types:
        chosen &= set().union(*(_names_of_type(kind, named) for kind in wanted_types))
    # By default every leaf, or every module of the types; what its parent reads has no output to measure.
    if not wanted_names and owning == "forward":
        if not wanted_types:
            chosen = {name for name in chosen if _is_leaf(name, named[name])}
        everything = {"": root, **named}
        chosen = {name for name in chosen if not is_read_by_parent(name, everything)} or chosen
    kept = {name: module for name, module in named.items() if name in chosen and _owns(module, owning)}
    if not kept and modules is None and types is None and _owns(root, owning):
        return {"": root}  # as a module that calls others by `torch.func.functional_call`
    if not kept:
        raise _nothing_left(modules, types, owning)
    return kept


def is_read_by_parent(name: str, modules: Mapping[str, nn.Module]) -> bool:
    """Return True for the `out_proj` of an `nn.MultiheadAttention`, which never calls it, and in parametrizations.

    >>> is_read_by_parent("out_proj", {"": nn.MultiheadAttention(4, 2)})
    True
    """
    if PARAMETRIZATIONS in name.split("."):
        return True
    above, _, own = name.rpartition(".")
    parent = modules.get(above) if own == "out_proj" else None
    return isinstance(parent, nn.MultiheadAttention) and type(parent).forward is nn.MultiheadAttention.forward


def named_submodules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every submodule except `root`, by its dotted name without parts that wrappers add (such as `_orig_mod`)."""
    found: dict[str, nn.Module] = {}
    for name, module in modules_in(root).items():
        own = [part for part in name.split(".") if part and part not in WRAPPERS]
        if own:
            found[".".join(own)] = module  # where a wrapper has the same name, the module inside
    yield from found.items()


def check_selection(modules: object, types: object = None) -> tuple[list[str], list[str | type]]:
    """Check the arguments `modules=` and `types=`, without a model; return both as lists, empty for None."""
    a_pattern = "a pattern for module names, such as 'layers.*', or several in a list (a class belongs in types=)"
    a_type = "a class or its name, such as 'Conv2d', or several in a list"
    default = "for the default"
    patterns = [] if modules is None else several("modules", modules, str, a_pattern, default)
    try:
        for pattern in patterns:
            matched(pattern.removeprefix(EXCLUDE_PREFIX), ())
    except ValueError as error:
        raise ValueError(f"modules: {error}") from error
    return patterns, [] if types is None else several("types", types, (str, type), a_type, default)


def _names_matching(pattern: str, named: dict[str, nn.Module]) -> set[str]:
    found = set(matched(pattern, named))
    if not found:
        raise ValueError(f"modules: {unknown('module', pattern, filter(None, named))}")
    return found


def _names_of_type(kind: str | type, named: dict[str, nn.Module]) -> set[str]:
    found = {name for name, module in named.items() if _is_of_type(module, kind)}
    if not found:
        present = sorted({type(module).__name__ for module in named.values()})
        raise ValueError(f"types: {unknown('type', kind if isinstance(kind, str) else kind.__name__, present)}")
    return found


def _is_of_type(module: nn.Module, kind: str | type) -> bool:
    located = pydoc.locate(kind) if isinstance(kind, str) and "." in kind else kind
    if isinstance(located, type):
        return isinstance(module, located)
    return any(cls.__name__ == located for cls in type(module).__mro__)


def _is_leaf(name: str, module: nn.Module) -> bool:
    """Return True for a module without submodules that is part of the model, so no metric and no parametrization."""
    inside_parametrization = PARAMETRIZATIONS in name.split(".")
    # Lists of parameters and what is never called, as in `nn.MultiheadAttention`, are no submodules.
    lists = (nn.ParameterList, nn.ParameterDict)
    has_children = any(
        name != PARAMETRIZATIONS and not isinstance(child, lists) and not is_read_by_parent(name, {"": module})
        for name, child in nn.Module.named_children(module)
    )
    return not has_children and not inside_parametrization and not isinstance(module, Metric)


def _owns(module: nn.Module, what: Literal["forward", "parameters"]) -> bool:
    if what == "parameters":
        return bool(parameters_in(module, recurse=False))
    forward = getattr(type(module), "forward", None)
    package = str(getattr(forward, "__module__", None)).partition(".")[0]
    return forward is not nn.Module.forward and package not in PACKAGES


def _nothing_left(modules: Patterns | None, types: Types | None, owning: str) -> ValueError:
    what = "a forward of its own to hook" if owning == "forward" else "parameters of its own"
    if modules is None and types is None:
        return NothingToSelectError(f"the model has no module with {what}")
    arguments = ", ".join(f"{key}={one!r}" for key, one in (("modules", modules), ("types", types)) if one is not None)
    return ValueError(f"{arguments} selects no module: none with {what} matches.")
