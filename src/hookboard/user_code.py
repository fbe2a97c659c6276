"""Tells the user's code from that of libraries, in the frames of a running call."""

import functools
import inspect
from pathlib import Path
from types import FrameType

import lightning
import torch

_LIBRARIES = (
    "<",
    *(f"{Path(inspect.getfile(library)).parent}/" for library in (torch, lightning)),
    f"{Path(__file__).parent}/",
)
"""How the paths of code begin of which a line tells a user nothing."""


@functools.cache
def is_of_library(path: str) -> bool:
    """Return whether a file is torch's, Lightning's or ours."""
    return path.startswith(_LIBRARIES)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the first frame of the user's code, from this one outward; None if there is none."""
    while frame is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
