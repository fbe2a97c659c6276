"""See inside the model you train: Lightning callbacks that log activations, gradients and parameters of its layers.

`api.py` lists everything public. Begin with README.md; CONTRIBUTING.md defines the words that the source uses.
"""

import importlib.util
import random
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"


def _load(name: str) -> Any:
    """Import a public object or submodule on first use: TensorBoard imports the package for its tab, without torch."""
    drawn = random.getstate()  # with Lightning comes rich, which draws
    try:
        if not name.startswith("_") and importlib.util.find_spec(f"hookboard.{name}"):  # a folder or file
            return importlib.import_module(f"hookboard.{name}")
        if name == "__all__" or not name.startswith("_"):  # notebooks ask everything for `_repr_html_`
            api = importlib.import_module("hookboard.api")
            if hasattr(api, name):
                return getattr(api, name)
    finally:
        random.setstate(drawn)
    raise AttributeError(f"module 'hookboard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_load("__all__")})


if TYPE_CHECKING:
    from hookboard.api import *  # noqa: F403 - api.py has the list
else:  # a type checker that sees it takes every name, also misspelled ones
    __getattr__ = _load
