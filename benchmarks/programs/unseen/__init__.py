"""Published programs that no rule was written with, and healthy ones of the same kinds.

`python -m benchmarks.programs.steps` runs them. The causes were committed before any monitor saw a program.
"""

from benchmarks.programs.steps import entered_in
from benchmarks.programs.unseen import agents, generators, healthy, pairs, scenes, sequences  # noqa: F401  # each enters its own

__all__ = ["CASES", "HEALTHY", "LEFT_OUT"]

CASES, HEALTHY = entered_in(__name__)

LEFT_OUT = {
    "How-Diffusion-Models-Work 1": "no harm: noise without the root costs 0.01 on points of a ring",
    "pytorch-lightning 591": "no harm: the gradients that are left over steady the discriminator, on points of a ring",
    "diffusion_models 8": "no fault of a training: rand() stands in a picture of how noise is added, not in the step",
    "alex-matton/causal-transformer-decoder 1": "the same fault as tutorials 2478",
    "deeplearning-lectures 22": "the same fault as STARS 9",
    "ProDA 43": "the same fault as ProDA 20",
    "VisionLearningGroup/DAL 1, skip-ganomaly 5, navneet-nmk/pytorch-rl 2": "nobody answered whether it is a fault",
    "CodeFormer 427, taming-transformers 57, deep-vector-quantization 2": "a weight at the other of two terms: no harm,"
    " as the last says itself",
}
"""What was ported or looked at, and why it is not here."""
