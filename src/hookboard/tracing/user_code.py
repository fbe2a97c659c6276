"""Tells the user's code from that of libraries, in the frames of a running call."""

import functools
import re
from pathlib import Path
from types import FrameType

from hookboard.base.prompts import cell_of

_LIBRARY = re.compile(
    rf"<|{re.escape(str(Path(__file__).parents[1]))}/"
    r"|.*-packages/(torch|lightning|lightning_fabric|pytorch_lightning|transformers|accelerate)/"
)
"""Paths of files whose lines tell a user nothing."""


@functools.cache
def is_of_library(path: str) -> bool:
    """Return True if a file belongs to torch, Lightning, Hugging Face or hookboard, or is none at all (`<stdin>`)."""
    return bool(_LIBRARY.match(path)) and not cell_of(path)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return `frame` or the nearest of its callers that runs the user's code; None if there is none."""
    while frame is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
