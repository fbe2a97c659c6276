"""Real data that ships with scikit-learn, in the shapes that recipes take."""

from functools import cache

import torch
from sklearn import datasets  # type: ignore[import-untyped]  # has no stubs
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # the usual name


@cache
def digits(size: int = 8, channels: int = 1) -> tuple[Tensor, Tensor]:
    """1797 digits from -1 to 1, shape (samples, channels, size, size), and their labels."""
    loaded = datasets.load_digits()
    images = torch.tensor(loaded.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    images = F.interpolate(images, size=(size, size), mode="bilinear")
    return images.repeat(1, channels, 1, 1), torch.tensor(loaded.target)


@cache
def table(name: str) -> tuple[Tensor, Tensor]:
    """A table with standardized columns; the target of a regression is standardized as well."""
    loaded = getattr(datasets, f"load_{name}")()
    inputs = torch.tensor(loaded.data, dtype=torch.float32)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    targets = torch.tensor(loaded.target)
    if targets.is_floating_point():
        targets = ((targets - targets.mean()) / targets.std()).float().unsqueeze(1)
    return inputs, targets


@cache
def text() -> tuple[Tensor, int]:
    """The descriptions of scikit-learn's data sets as numbers of characters, and how many characters there are."""
    names = ("digits", "iris", "wine", "breast_cancer", "diabetes", "linnerud")
    written = "".join(getattr(datasets, f"load_{name}")().DESCR for name in names)
    known = sorted(set(written))
    return torch.tensor([known.index(each) for each in written]), len(known)


def windows(length: int) -> tuple[Tensor, int]:
    """All pieces of the text, each half a length after the one before; and how many characters there are."""
    characters, count = text()
    return characters.unfold(0, length, length // 2).contiguous(), count


@cache
def patches(size: int) -> Tensor:
    """Pieces of scikit-learn's two photographs, from 0 to 1, shape (pieces, 3, size, size)."""
    photographs = torch.tensor(datasets.load_sample_images().images) / 255
    pieces = photographs.permute(0, 3, 1, 2).unfold(2, size, size).unfold(3, size, size)
    return pieces.permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, size, size).contiguous()
