"""Which trainings thresholds may be set on, and which the table reports. The rule is fixed here, and nowhere else.

- The architectures `mlp`, `cnn_bn`, `mixer`, `deep` and `narrow` are for tuning, with all their seeds.
- `vgg` and `vit` are reported, with all their seeds: nobody has set a threshold on them. `deep` and `mixer` are of
  their kind, without a layer in common: a plain net without norm, and one that works on tokens.
- Of the others a training is reported if the number of its architecture in `BASES` plus its seed is odd.

So eleven architectures stand on one side and eight on the other, six of them on both with other seeds. Plants have the
seeds 0, 1 and 2, all of which say whether there was harm. Healthy trainings have so many that three of them are
reported, where any is.
"""

from typing import Literal

from benchmarks.health.bases import BASES

Half = Literal["tuning", "reported"]

ONLY: dict[str, Half] = {
    "mlp": "tuning",
    "cnn_bn": "tuning",
    "mixer": "tuning",
    "deep": "tuning",
    "narrow": "tuning",
    "vgg": "reported",
    "vit": "reported",
}

PLANT_SEEDS = (0, 1, 2)


def half_of(base: str, seed: int) -> Half:
    """The half that a training belongs to.

    >>> half_of("vit", 0), half_of("mlp", 0)
    ('reported', 'tuning')
    >>> {seed: half_of("cnn", seed) for seed in range(3)}
    {0: 'tuning', 1: 'reported', 2: 'tuning'}
    """
    if base in ONLY:
        return ONLY[base]
    return "reported" if (list(BASES).index(base) + seed) % 2 else "tuning"


def healthy_seeds(base: str) -> tuple[int, ...]:
    """The seeds of a healthy training: three that are reported, or three for tuning; of shared architectures also two.

    >>> [half_of("cnn", seed) for seed in healthy_seeds("cnn")].count("reported")
    3
    """
    if base in ONLY:
        return (0, 1, 2)
    first_reported = (list(BASES).index(base) + 1) % 2
    return tuple(
        sorted([first_reported, first_reported + 2, first_reported + 4, 1 - first_reported, 3 - first_reported])
    )
