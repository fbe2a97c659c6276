"""`Case`: one training of the benchmark, made of its name: a base, a control or a plant, and a seed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.health.bases import BASES
from benchmarks.health.controls import CONTROLS
from benchmarks.health.halves import PLANT_SEEDS, Half, half_of, healthy_seeds
from benchmarks.health.plants import PLANTS, places
from benchmarks.health.training import Setup
from lightning.pytorch import seed_everything


@dataclass(frozen=True, order=True)
class Case:
    """A training.

    Args:
        kind: `base`, `control` or `plant`.
        name: of the control or the plant; of a base the same as `base`.
        base: the architecture.
        seed: of initialization, of the order of samples, and of all else that is random.
    """

    kind: Literal["base", "control", "plant"]
    name: str
    base: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}-{self.base}-{self.seed}"

    @property
    def half(self) -> Half:
        return half_of(self.base, self.seed)


@dataclass(frozen=True)
class Truth:
    """What is true of a plant.

    Args:
        causes: the names that are right: rules of hookboard, or `OF_OTHER_TOOLS`.
        places: dotted names of the modules that are a right place; "" is the whole model.
        onset: the first and the last step at which it may be said to begin.
        by_itself: whether it is a defect whatever the loss does.
    """

    causes: frozenset[str] = frozenset()
    places: frozenset[str] = field(default_factory=frozenset)
    onset: tuple[int, int] = (0, 0)
    by_itself: bool = False


OF_OTHER_TOOLS = frozenset({"exploding_gradient", "saturated"})
"""Names of faults that other tools give, and for which hookboard has no rule."""

SLOWEST_FIRST = ("postnorm", "prenorm", "lstm", "vit")


def all_cases() -> list[Case]:
    """Every case, those that take longest first."""
    cases = list(_cases())
    return sorted(cases, key=lambda case: SLOWEST_FIRST.index(case.base) if case.base in SLOWEST_FIRST else 9)


def _cases() -> Iterator[Case]:
    for base in BASES:
        yield from (Case("base", base, base, seed) for seed in healthy_seeds(base))
    for control in CONTROLS.values():
        for base in control.bases:
            yield from (Case("control", control.name, base, seed) for seed in healthy_seeds(base))
    for plant in PLANTS.values():
        for base in plant.bases:
            yield from (Case("plant", plant.name, base, seed) for seed in PLANT_SEEDS)


def build(case: Case) -> tuple[Setup, Truth]:
    """The training of a case, with its weights drawn, and what is true of it."""
    seed_everything(case.seed, verbose=False)
    setup = BASES[case.base]()
    if case.kind == "control":
        CONTROLS[case.name].change(setup)
    if case.kind == "plant":
        plant = PLANTS[case.name]
        where = places(setup, plant.put(setup))
        return setup, Truth(plant.causes, where, plant.onset, plant.by_itself)
    return setup, Truth()
