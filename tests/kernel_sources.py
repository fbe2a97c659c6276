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

from hookboard.measure import accelerator
from hookboard.measure.memory import FIRST, LAST, RUNS, WHOLE, Shape, shape_in_memory

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

FAST_FLOAT64 = {80, 90, 100}
"""Compute capabilities whose cards add float64 at half the speed of float32, most of them."""

LAYOUTS = {
    WHOLE: (torch.Size([1 << 24]), None),
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
    scale: bool = False
    abs_mean: bool = True
    aligned: bool = True
    together: bool = False

    def job(self) -> accelerator.Job:
        shape, dim = LAYOUTS[self.layout]
        # Only its dtype and address are looked at: it is the memory of two numbers.
        memory = torch.empty(64, dtype=TYPES[self.dtype])
        of_shape = shape_in_memory(shape, torch.empty(shape, device="meta").stride(), dim)
        return accelerator.Job(memory[0 if self.aligned else 1 :], None, of_shape)


def way_of(variant: Variant, shape: Shape | None = None) -> accelerator.Way:
    """How the launcher measures it."""
    flags = variant.aligned, variant.bins, variant.abs_mean, variant.scale
    return accelerator._way(shape or variant.job().shape, TYPES[variant.dtype], torch.device("cpu"), *flags)


def source_of(capability: int, variant: Variant) -> tuple[Any, int]:
    """The source of a kernel for such a card, and how many warps it has."""
    from triton.compiler import ASTSource

    from hookboard.measure import triton_kernel

    shape, warps = variant.job().shape, 8 if variant.bins else 4
    if variant.together and shape.layout == WHOLE:
        shape = shape._replace(layout=FIRST)
    constants = {**way_of(variant, shape).constants, "PAIRS": capability not in FAST_FLOAT64}
    if variant.together:
        pointers = {"like": f"*{variant.dtype}", "scale": "*fp32", "table": "*i64", "copies": "*i32"}
        numbers = {"jobs": "i32"}
        kernel = triton_kernel.measure_many
    else:
        pointers = {"values": f"*{variant.dtype}", "scale": "*fp32", "counts": "*i64", "rows": "*fp64"}
        pointers |= {"scratch": "*fp64", "counters": "*i32", "copies": "*i32"}
        numbers = dict.fromkeys(["outer", "channels", "inner", "apart", "every"], "i64") | {"is_fresh": "i32"}
        kernel = triton_kernel.measure
    signature = pointers | numbers | dict.fromkeys(constants, "constexpr")
    names = list(signature)
    aligned = range(0 if variant.aligned else 1, len(pointers))
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    return source, warps


def compiled(capability: int, variant: Variant) -> Any:
    """What Triton makes of a variant for a card of this compute capability."""
    import triton
    from triton.backends.compiler import GPUTarget

    source, warps = source_of(capability, variant)
    options = accelerator.options(warps)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


OF_A_FIRST_STEP = [
    *(Variant("bf16", WHOLE, bins=bins) for bins in (False, True)),
    *(Variant("bf16", layout, bins=True, abs_mean=False) for layout in (RUNS, LAST)),
    *(Variant("bf16", FIRST, abs_mean=False, aligned=aligned, together=True) for aligned in (True, False)),
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
