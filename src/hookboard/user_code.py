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
"""Prefixes of the paths of files whose lines tell a user nothing."""


@functools.cache
def is_of_library(path: str) -> bool:
    """Return True if a file belongs to torch, Lightning or hookboard, or is generated code such as `<string>`."""
    return path.startswith(_LIBRARIES)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return `frame` or the nearest of its callers that runs the user's code; None if there is none."""
    while frame is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
