"""Every two circumstances of a training meet in one run, which is held against the oracle and against the bare run.

    make combinations            all pairs
    SEED=7 make combinations     other arrays, and triples
    CIRCUMSTANCES="a lazy layer; pictures" make combinations    this one run

A run is a row with one circumstance of each axis. One that fails says its circumstances, the smallest set of them that
still fails, and the command that runs this set alone.
"""

import os
from itertools import product

import pytest
from combinations.covering import CANNOT_MEET, COMPILED, array, changing, drawn
from combinations.holding import faults, was_on_purpose
from combinations.running import run
from combinations.shrinking import kinds, shrunk
from toys import IS_OLD_TORCH

ASKED = [name.strip() for name in os.environ.get("CIRCUMSTANCES", "").split(";") if name.strip()]
SEED = int(os.environ.get("SEED", "0"))
IS_WHOLE = "COMBINATIONS" in os.environ

MOST_SHOWN = 12


def rows():
    if ASKED:
        return [ASKED]
    if not IS_WHOLE:
        return drawn(seed=0, count=40, size=2)
    return [*array(SEED), *(drawn(SEED, count=400, size=3) if SEED else ())]


def parameter(number, row):
    kind = pytest.mark.compiles if COMPILED & set(row) else pytest.mark.trains
    return pytest.param(row, id=f"{number}", marks=kind)


@pytest.mark.parametrize("row", [parameter(number, row) for number, row in enumerate(rows())])
def test_hookboard_tells_the_truth_and_changes_nothing_where(row, tmp_path):
    names = changing(row)
    found = faults(names, tmp_path)
    if kinds(found) == {"cannot be"}:
        pytest.skip(found[0])
    if found:
        few = shrunk(names, found, lambda fewer: faults(fewer, tmp_path))
        pytest.fail(said_of(names, few, found), pytrace=False)


def said_of(names, few, found):
    shown = [*found[:MOST_SHOWN], *([f"and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else [])]
    return "\n".join(
        [
            f"{len(found)} faults where these circumstances meet:",
            *(f"    {name}" for name in names),
            "The smallest set of them that fails, and how to run it:",
            f'    CIRCUMSTANCES="{"; ".join(few)}" make combinations',
            *shown,
        ]
    )


def kept_apart():
    every = [(why, list(product(*map(sorted, together)))) for why, together in CANNOT_MEET if not ASKED]
    return [
        (why, names) for why, sets in (every if IS_WHOLE else every[::4]) for names in (sets if IS_WHOLE else sets[:1])
    ]


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("why", "names"), kept_apart(), ids=lambda given: None if isinstance(given, str) else ", ".join(given)
)
def test_what_cannot_meet_ends_with_the_same_error_beside_hookboard(why, names, tmp_path):
    together = [*names, "a HealthMonitor"]
    bare, watched = run(together, "bare", tmp_path), run(together, "watched", tmp_path)
    if bare.error is None and IS_OLD_TORCH:
        pytest.skip("in an older torch they can meet")
    assert bare.error is not None
    assert not was_on_purpose(bare.error)
    assert watched.error is not None  # of another class where hooks keep a layer from its fused path
