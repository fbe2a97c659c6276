"""The Triton kernels as the launcher asks for them, without a GPU.

    python tests/kernel_sources.py 80 90 120

prints for each compute capability the seconds of CPU time that it takes to compile those of a first due step, with
none on disk: both loggers, histograms and `HealthMonitor`, for a model in bf16. The first includes importing Triton.
"""

import os
import resource
import sys
import tempfile
from typing import Any

import torch

from hookboard.measure import accelerator

SIGNATURE = {
    "values": "",
    "scale": "*fp32",
    "counts": "*i64",
    "rows": "*fp64",
    "elements": "i64",
    "channels": "i64",
    "inner": "i64",
}

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}

DUE = [(True, False), (True, True), (False, False)]
"""Of the kernels for whole tensors: whether magnitudes are summed, and whether bins are counted."""


def row_kernel(capability, dtype, layout, has_scale, has_abs_mean, has_bins, is_aligned):
    """The source of a variant of `rows_of`, as the launcher asks for it on such a card."""
    from hookboard.measure import triton_kernel

    values, width = accelerator.tile(("flat", "spread", "last", "last")[layout], TYPES[dtype], has_bins)
    has_fast_float64 = (capability // 10, capability % 10) in accelerator.FAST_FLOAT64
    constants = {
        "LAYOUT": layout,
        "ROWS": values,
        "CHANNELS": width,
        "PAIRS": dtype != "fp64" and not has_fast_float64,
        "HAS_SCALE": has_scale,
        "HAS_ABS_MEAN": has_abs_mean,
        "HAS_BINS": has_bins,
    }
    aligned = range(4) if is_aligned else range(1, 4)
    return source_of(triton_kernel.rows_of, {**SIGNATURE, "values": f"*{dtype}"}, constants, aligned)


def merge_kernel():
    from hookboard.measure import triton_kernel

    signature = {"parts": "*fp64", "rows": "*fp64", "count": "i32", "channels": "i64"}
    return source_of(triton_kernel.merge, signature, {"PARTS": accelerator.MAX_PROGRAMS}, range(2))


def source_of(kernel, signature, constants, aligned):
    from triton.compiler import ASTSource

    signature |= dict.fromkeys(constants, "constexpr")
    names = list(signature)
    return ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )


def compiled(source: Any, capability: int) -> Any:
    """What Triton makes of it for a card of this compute capability."""
    import triton
    from triton.backends.compiler import GPUTarget

    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=accelerator.OPTIONS)


def main() -> None:
    """Compile what a first due step needs, and say how long it took."""
    with tempfile.TemporaryDirectory() as nothing:
        os.environ["TRITON_CACHE_DIR"] = nothing  # before Triton is imported
        for capability in map(int, sys.argv[1:]):
            start = cpu_seconds()
            flat = [row_kernel(capability, "bf16", 0, False, abs_mean, bins, True) for abs_mean, bins in DUE]
            of_channels = [row_kernel(capability, "bf16", layout, False, False, False, True) for layout in (1, 2, 3)]
            for source in (*flat, *of_channels, merge_kernel()):
                compiled(source, capability)
            print(f"{capability}: {cpu_seconds() - start:.1f} s")


def cpu_seconds() -> float:
    """Of this process, and of the assembler that it starts."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
