"""Tells the user's code from that of libraries, in the frames of a running call."""

import functools
import importlib.util
import inspect
from pathlib import Path
from types import FrameType

import torch

from hookboard.base.either_lightning import PACKAGES
from hookboard.base.prompts import cell_of

_LIBRARIES = (
    "<",
    *(
        f"{Path(spec.origin).parent}/"
        for name in (*PACKAGES, "transformers", "accelerate")
        if (spec := importlib.util.find_spec(name)) and spec.origin
    ),
    *(f"{folder}/" for folder in (Path(inspect.getfile(torch)).parent, Path(__file__).parents[1])),
)
"""Prefixes of the paths of files whose lines tell a user nothing."""


@functools.cache
def is_of_library(path: str) -> bool:
    """Return True if a file belongs to torch, Lightning, Hugging Face or hookboard, or is none at all (`<stdin>`)."""
    return path.startswith(_LIBRARIES) and not cell_of(path)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return `frame` or the nearest of its callers that runs the user's code; None if there is none."""
    while frame is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
