"""The Triton kernels as the launcher asks for them, without a GPU.

    python tests/kernel_sources.py 80 90 120

prints for each compute capability the seconds of CPU time that it takes to compile those of a first due step, with
none on disk: both loggers, histograms and `HealthMonitor`, for a model in bf16. The first includes importing Triton.
"""

import os
import resource
import sys
import tempfile
from typing import Any, NamedTuple

import torch

from hookboard.measure.memory import FIRST, LAST, RUNS

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

FAST_FLOAT64 = {80, 90, 100}
"""Compute capabilities whose cards add float64 at half the speed of float32, most of them."""

LAYOUTS = {
    FIRST: (torch.Size([4096, 4096]), 0),
    RUNS: (torch.Size([64, 256, 56, 56]), 1),
    LAST: (torch.Size([8192, 4096]), 1),
}
"""Of each layout a tensor that has it, and the dimension of its channels."""


class Variant(NamedTuple):
    """What decides for which kernel the launcher asks."""

    dtype: str
    layout: int
    bins: bool = False
    minus: bool = False
    abs_mean: bool = True
    aligned: bool = True
    together: bool = False

    def form(self) -> Any:
        """How the launcher measures it."""
        from hookboard.measure import on_gpu

        shape, dim = LAYOUTS[self.layout]
        tensor = torch.empty(shape, device="meta", dtype=TYPES[self.dtype])
        form = on_gpu.form_of(tensor, dim, has_bins=self.bins, has_minus=self.minus, with_abs_mean=self.abs_mean)
        assert form.constants["LAYOUT"] == self.layout
        return form


def source_of(capability: int, variant: Variant) -> Any:
    """The source of the kernel for such a card."""
    from triton.compiler import ASTSource

    from hookboard.measure import on_gpu

    fast = {"PAIRS": capability not in FAST_FLOAT64}
    constants = {**variant.form().constants, "IS_ALIGNED": variant.aligned, "HAS_TABLE": variant.together} | fast
    pointers = {"values": f"*{variant.dtype}", "minus": f"*{variant.dtype}", "slab": "*fp64", "bins": "*i64"}
    pointers |= {"scratch": "*fp64", "counters": "*i32", "table": "*i64"}
    numbers = {"jobs": "i32", "programs": "i32"} | dict.fromkeys(["row", "bin_row", "outer", "channels"], "i64")
    numbers |= {"inner": "i64", "every": "i64", "is_fresh": "i32"}
    signature = pointers | numbers | dict.fromkeys(constants, "constexpr")
    names = list(signature)
    aligned = range(0 if variant.aligned else 2, len(pointers))
    return ASTSource(
        on_gpu.measure,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )


def compiled(capability: int, variant: Variant) -> Any:
    """What Triton makes of a variant for a card of this compute capability."""
    import triton
    from triton.backends.compiler import GPUTarget

    from hookboard.measure import on_gpu

    options = on_gpu.OPTIONS | {"num_warps": on_gpu.WARPS[variant.bins]}
    return triton.compile(source_of(capability, variant), target=GPUTarget("cuda", capability, 32), options=options)


OF_A_FIRST_STEP = [
    *(Variant("bf16", FIRST, bins=bins) for bins in (False, True)),
    *(Variant("bf16", layout, bins=True, abs_mean=False) for layout in (RUNS, LAST)),
    *(Variant("bf16", FIRST, minus=minus, abs_mean=False, together=True) for minus in (False, True)),
]


def main() -> None:
    """Compile what a first due step needs, and say how long it took."""
    with tempfile.TemporaryDirectory() as nothing:
        os.environ["TRITON_CACHE_DIR"] = nothing  # before Triton is imported
        for capability in map(int, sys.argv[1:]):
            start = cpu_seconds()
            for variant in OF_A_FIRST_STEP:
                compiled(capability, variant)
            print(f"{capability}: {cpu_seconds() - start:.1f} s")


def cpu_seconds() -> float:
    """Of this process, and of the assembler that it starts."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
