"""The data of all trainings: scikit-learn's digits, and characters of Python's standard library. Nothing is loaded."""

import inspect
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # has no stubs
from torch import Tensor

CONTEXT = 32
"""Characters that a model of text reads at once."""

VOCABULARY = 128
"""ASCII; the few other characters are dropped."""

TRAIN_MODULES = ("argparse", "difflib", "doctest", "inspect", "pickle", "tarfile", "typing")
VALIDATION_MODULES = ("statistics", "textwrap")


@dataclass
class Data:
    """What a training reads.

    Args:
        inputs: shape (samples, ...).
        targets: class indices, shape (samples,), or (samples, tokens) of text.
        held_out_inputs: the same for validation.
        held_out_targets: the same for validation.
    """

    inputs: Tensor
    targets: Tensor
    held_out_inputs: Tensor
    held_out_targets: Tensor


def digits() -> Data:
    """Images of 1x8x8 from 0 to 1, standardized, and their labels."""
    images, labels = _digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, held_out = order[:1440], order[1440:]
    return Data(images[train], labels[train], images[held_out], labels[held_out])


def text() -> Data:
    """Windows of characters; the targets are the inputs, moved by one."""
    train, held_out = _windows(TRAIN_MODULES), _windows(VALIDATION_MODULES)
    return Data(train[:, :-1], train[:, 1:], held_out[:, :-1], held_out[:, 1:])


def by_class(data: Data, run: int) -> None:
    """Put the samples in such an order that so many of one class always stand together, in runs of random order."""
    order = data.targets.argsort(stable=True)[: len(data.targets) // run * run]
    runs = torch.randperm(len(order) // run, generator=torch.Generator().manual_seed(0))
    order = order.view(-1, run)[runs].flatten()
    data.inputs, data.targets = data.inputs[order], data.targets[order]


@cache
def _digits() -> tuple[Tensor, Tensor]:
    loaded = load_digits()
    images = torch.tensor(loaded.images, dtype=torch.float32).unsqueeze(1)
    return (images - images.mean()) / images.std(), torch.tensor(loaded.target)


@cache
def _windows(modules: tuple[str, ...]) -> Tensor:
    source = "".join(inspect.getsource(import_module(name)) for name in modules)
    characters = torch.tensor(list(source.encode("ascii", "ignore")))
    return characters.unfold(0, CONTEXT + 1, CONTEXT + 1)
