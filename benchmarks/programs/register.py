"""Where programs come from, and the list that they are entered in."""

from collections.abc import Callable

import torch
from benchmarks.programs.trial import Post, Program
from torch import Tensor

DEEPLOCALIZE = "Wardat-ISU/DeepLocalize@297bc34:Benchmark/StackOverflow/{}"
GITHUB = "Wardat-ISU/DeepLocalize@297bc34:Benchmark/GitHub/Buggy Model/{}"
AUTOTRAINER = "shiningrain/AUTOTRAINER@03a463e:{}"
DEEPFD_PATCHES = "ArabelaTso/DeepFD@9fe0895:Benchmark/Benchmark-with-patches.xlsx"
BENCHDL4REAL = "dlfaults/HowRealAreThey@358a4a1:BenchDL4Real/{}"
AUTOTRAINER_MODELS = "DeepDiagnosis/ICSE2022@500b017:AUTOTRAINER Model Code/{}"
"""AutoTrainer's own models, which it published as weights, written out as code by the authors of DeepDiagnosis."""

TENSORFLOW_BUGS = "ForeverZyh/TensorFlow-Program-Bugs@158ba0a:StackOverflow/{}"
PYSIASSIST = "Hong-Shuo/PYSIASSIST@f54ef5f:dataset/testing_codes_set.xlsx, {}"
"""Posts in PyTorch's forum that were labelled with a pattern of silent bugs, which says the fix."""
TRAINCHECK = "OrderLab/TrainCheck-Evaluation-Workloads@2de9268:silent-issue-detection/bug-reprod-scripts/{}"
UMLAUT = "BerkeleyHCI/umlaut@68c2a02:user_eval/{}"

POSTS: list[Post] = []
"""Filled by the files that `catalogue.py` imports."""


def post(
    name: str, source: str, *, fault: str, fix: str, port: str, causes: tuple[str, ...], seed: int = 0
) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Enter the program that the decorated function builds."""

    def kept(build: Callable[[bool], Program]) -> Callable[[bool], Program]:
        POSTS.append(Post(name, source, fault, fix, port, causes, build, seed))
        return build

    return kept


def tensors(inputs: object, targets: object) -> tuple[Tensor, Tensor]:
    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets)
