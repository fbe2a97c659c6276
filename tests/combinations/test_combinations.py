"""Every two circumstances of a training meet in one run, which is held against the oracle and against the bare run.

    make combinations            all pairs
    SEED=7 make combinations     other arrays, and triples
    CIRCUMSTANCES="a lazy layer; pictures" make combinations    this one run

A run is a row with one circumstance of each axis. One that fails says its circumstances, and the command that runs
them alone: leave out what the fault does not need.
"""

import os

import pytest
from combinations.covering import COMPILED, array, changing, drawn
from combinations.holding import faults

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
    if found and all(fault.startswith("cannot be: ") for fault in found):
        pytest.skip(found[0])
    if found:
        pytest.fail(said_of(names, found), pytrace=False)


def said_of(names, found):
    return "\n".join(
        [
            f"{len(found)} faults where these circumstances meet:",
            f'    CIRCUMSTANCES="{"; ".join(names)}" make combinations',
            *found[:MOST_SHOWN],
            *([f"and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []),
        ]
    )
