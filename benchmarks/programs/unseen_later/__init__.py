"""A second set of published programs that no rule was written with, and of healthy ones of other kinds.

`python -m benchmarks.programs.steps --series later` runs them. The causes were committed before any monitor saw a
program.
"""

from benchmarks.programs.steps import entered_in
from benchmarks.programs.unseen_later import (  # noqa: F401  # each enters its own
    agents,
    classes,
    fields,
    generators,
    healthy,
    pairs,
    scenes,
    sequences,
    series,
)

__all__ = ["CASES", "HEALTHY", "LEFT_OUT"]

CASES, HEALTHY = entered_in(__name__)

LEFT_OUT: dict[str, str] = {
    "lightly 564": "no harm: its own keys among 64 or 128 negatives cost nothing on rows of 32 columns",
    "pytorch-wgan 40, CipherGAN 4": "no harm: a penalty over the wrong axis costs nothing on bars in pictures of 8x8",
    "VICRegL 6": "not ported: the last of several losses alone, which with one encoder is only slower",
    "implicit 103, DREAM 1": "not ported: in a small table, positives among negatives cancel out",
    "tofu 30": "its authors do not use the loss that is overwritten",
    "transformers 47394, delphi 134": "the same fault as transformers 37830",
    "GenerativeModels 314": "the same fault as transformers 27517",
    "ivadomed 55": "the same fault as SRGAN 94",
    "asparagus 12": "the same fault as voicebox-pytorch 6",
    "RAE 67, PreDiff 33": "the same fault as torchtitan 3575",
    "the-algorithm-ml 136": "the same fault as pytorch 715",
    "numpy-transformer 1": "the same fault as anlp-fall2025-code 1",
    "knowing-when-to-look 6": "the same fault as Informer2020 59",
    "cic 5, QR-DQN 1, ConVIRT-pytorch 7": "nobody answered whether it is a fault",
    "annotated_deep_learning 146, LoFTR 41, grammarVAE 2": "no harm, as the sources say themselves",
}
"""What was ported or looked at, and why it is not here."""
