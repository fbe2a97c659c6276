"""Layers by hookboard's own patterns and types, as its callbacks select modules, but from a record."""

from collections.abc import Mapping, Sequence

from hookboard.board.refusal import RefusalError
from hookboard.messages import closest, listed
from hookboard.patterns import regex_of
from hookboard.record import LayerFacts


def selected(layers: Mapping[str, LayerFacts], modules: Sequence[str], types: Sequence[str]) -> list[str]:
    """The names of the layers that the patterns and types name, in the order of `layers`.

    Args:
        layers: name to facts.
        modules: patterns over dotted names; a leading `!` excludes. None: all names.
        types: names of classes, short or full; classes that inherit from them count, a leading `!` excludes.

    Raises:
        RefusalError: a pattern or type matches nothing.
    """
    chosen = set(layers)
    for given, names_of in ((modules, _names_matching), (types, _names_of_type)):
        wanted = [names_of(layers, one) for one in given if not one.startswith("!")]
        dropped = [names_of(layers, one[1:]) for one in given if one.startswith("!")]
        chosen = (chosen.intersection(set().union(*wanted)) if wanted else chosen).difference(*dropped)
    return [name for name in layers if name in chosen]


def _names_matching(layers: Mapping[str, LayerFacts], pattern: str) -> set[str]:
    try:
        regex = regex_of(pattern)
    except ValueError as error:
        raise RefusalError(str(error)) from error
    matched = {name for name in layers if regex.fullmatch(name)}
    if not matched:
        wider = f"**{pattern}**"
        is_plain = pattern and not pattern.startswith("re:")
        count = is_plain and sum(regex_of(wider).fullmatch(name) is not None for name in layers)
        what = f"the pattern {pattern!r} matches no layer's whole name" + (
            f", {wider!r} matches {count}" if count else ""
        )
        raise RefusalError(_nothing("layers", what, pattern, list(layers)))
    return matched


def _names_of_type(layers: Mapping[str, LayerFacts], kind: str) -> set[str]:
    matched = {name for name, layer in layers.items() if any(_is_called(full, kind) for full in layer.types)}
    if not matched:
        present = sorted({layer.types[0].rpartition(".")[2] for layer in layers.values() if layer.types})
        if not present:
            raise RefusalError(f"types: the run has no record of its layers' types, {kind!r} cannot be looked for.")
        raise RefusalError(_nothing("types", f"no layer is a {kind!r}", kind, present))
    return matched


def _is_called(full: str, given: str) -> bool:
    """Whether a class has this name: its short one, its full one, or one under which a package offers it.

    >>> _is_called("torch.nn.modules.conv.Conv2d", "torch.nn.Conv2d")
    True
    """
    module, _, name = full.rpartition(".")
    package, _, last = given.rpartition(".")
    return name == last and (not package or f"{module}.".startswith(f"{package}."))


def _nothing(option: str, what: str, given: str, valid: list[str]) -> str:
    near = closest(given.removeprefix("re:"), valid)
    hint = f"; the closest are {', '.join(map(repr, near))}" if near else ""
    return f"{option}: {what}{hint}. Valid: {listed(valid)}."
