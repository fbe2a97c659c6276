"""See inside the model you train: Lightning callbacks that log activations, gradients and parameters of its layers.

`api.py` lists everything public. README.md has examples; CONTRIBUTING.md defines the words of the source.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookboard.api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What is public is loaded when somebody asks for it: TensorBoard, which shows the tab, needs no torch for that."""
    if name == "__all__" or not name.startswith("__"):
        api = importlib.import_module("hookboard.api")
        for place in (vars(api), globals()):  # the import has added the folders to the latter
            if name in place:
                return place[name]
    raise AttributeError(f"module 'hookboard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
