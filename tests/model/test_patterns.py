"""Patterns in messages: as few names as say the same, and no name too many."""

from random import Random

import pytest

from hookboard.model.patterns import folded, matched

LAYERS = [f"layers.{i}.{part}" for i in range(12) for part in ("attn", "mlp.0", "mlp.1")]


@pytest.mark.parametrize(
    ("names", "among", "said"),
    [
        ([f"layers.{i}.attn" for i in range(12)], LAYERS, "layers.*.attn (12)"),
        ([f"layers.{i}.attn" for i in range(11)], LAYERS[:6], "layers.*.attn (11)"),
        (["layers.0.attn", "layers.1.attn"], LAYERS, "layers.0.attn, layers.1.attn"),
        (["layers.0.mlp.0", "layers.0.mlp.1"], LAYERS, "layers.0.mlp.* (2)"),
        ([n for n in LAYERS if "mlp" in n], LAYERS, "layers.*.mlp.* (24)"),
        (["head", *(f"layers.{i}.attn" for i in range(12))], [*LAYERS, "head"], "head, layers.*.attn (12)"),
        (["layers.0", "layers.1"], ["layers.final"], "layers.0, layers.1"),
        (["layers.0", "layers.1", "layers.final"], [], "layers.* (3)"),
        (["0", "1"], ["", "0.weight"], "* (2)"),
        (["other.0", "other.1"], ["other.0", "other.1", "other.2"], "other.0, other.1"),
        ([], LAYERS, ""),
    ],
)
def test_names_that_differ_in_numbers_alone_are_one_if_all_such_are_meant(names, among, said):
    assert folded(names, among) == said


def test_what_is_left_is_cut_after_a_dozen():
    assert folded([f"part{i}" for i in range(20)]).endswith("part11 and 8 more")


def by_definition(pattern, name):
    """Whether a pattern matches a name: what each part may stand for, tried one after another."""
    if not pattern:
        return not name
    if pattern.startswith("**."):
        rests = [name, *(name[i + 1 :] for i in range(1, len(name)) if name[i] == ".")]
        return any(by_definition(pattern[3:], rest) for rest in rests)
    if pattern.startswith("**"):
        return any(by_definition(pattern[2:], name[i:]) for i in range(len(name) + 1))
    if pattern.startswith("*"):
        return any(by_definition(pattern[1:], name[i:]) for i in range(len(name.partition(".")[0]) + 1))
    return name[:1] == pattern[0] and by_definition(pattern[1:], name[1:])


def test_patterns_match_what_they_are_defined_to_match():
    random = Random(0)
    names = ["".join(random.choices("ab.\n", k=random.randrange(7))) for _ in range(60)]
    for _ in range(600):
        pattern = "".join(random.choices(["a", "b", ".", "*", "**", "**."], k=random.randrange(6)))
        meant = [name for name in names if by_definition(pattern, name) and (name or pattern != "*")]
        assert matched(pattern, names) == meant, pattern
