"""Prints requirements/tested.txt: the version of everything that is installed beside this Python, a line for each.

What only a newer Python than the oldest one may have is left to pip on the others. CUDA is left to torch's own pins.
"""

import re
from importlib.metadata import Distribution, distributions

HEADING = (
    "# What `make` installs: the versions that were tested last."
    " `make test-all pins VERSIONS=newest` tests the newest ones and writes them here."
)
LEFT_OUT = re.compile(r"hookboard|triton|nvidia-.*|cuda-.*")


def pin(found: Distribution) -> str:
    """Such as `numpy==2.4.6 ; python_full_version >= "3.11"`."""
    name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()
    needed = re.search(r">=\s*3\.(\d+)[\d.]*", found.metadata["Requires-Python"] or "")
    marker = f' ; python_full_version >= "{needed[0].lstrip(">= ")}"' if needed and int(needed[1]) > 10 else ""
    return f"{name}=={found.version}{marker}"


def pins(found: list[Distribution]) -> list[str]:
    return sorted({line for each in found if not LEFT_OUT.fullmatch((line := pin(each)).partition("==")[0])})


if __name__ == "__main__":
    print(HEADING, *pins(list(distributions())), sep="\n")
