"""What the compiled kernel takes on the CPU, as a multiple of one read of the tensor (`x.sum()` on the same threads).

    python benchmarks/kernel.py

prints for each type and size three multiples: of the row, of the row with a histogram's bins, and of the row with those
of 64 channels. Each is the median of the ratios of calls side by side. It takes half a minute.
"""

import argparse
import statistics
import time

import torch
from torch import Tensor

from hookboard.measure.statistics import FORMULAS, plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = (10**5, 10**6, 10**7)
MOMENTS = plan([name for name in FORMULAS if name not in ("abs_mean", "l1")])
CPU, SITE = torch.device("cpu"), Site("layer", "output")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{torch.get_num_threads()} threads" + "".join(f"{size:>22.0e}" for size in SIZES))
    print(" " * 9 + "".join(f"{name:>7}" for name in ("row", "bins", "chan.") * len(SIZES)))
    for dtype in TYPES:
        multiples = [multiple for size in SIZES for multiple in multiples_of(dtype, size)]
        print(f"{str(dtype)[6:]:9}" + "".join(f"{multiple:7.1f}" for multiple in multiples))


def multiples_of(dtype: torch.dtype, size: int) -> list[float]:
    """The three multiples for a tensor of about so many values, which are rectified normal numbers."""
    x = torch.randn(size // 6400, 64, 10, 10).relu_().to(dtype)
    tables = [
        Table(MOMENTS, CPU),
        Table(MOMENTS, CPU, histogram=True),
        Table(MOMENTS, CPU, channels=lambda site, given: 1),
    ]
    ways = [torch.sum, *(table.open(SITE) for table in tables)]
    times = [[seconds(way, x) for way in ways] for _ in range(max(10, min(200, 2 * 10**7 // size)))]
    return [statistics.median(row[way] / row[0] for row in times[2:]) for way in (1, 2, 3)]


def seconds(way, x: Tensor) -> float:
    start = time.perf_counter()
    way(x)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
