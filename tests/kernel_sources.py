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
    aligned: bool = True

    def form(self) -> Any:
        """How the launcher measures it."""
        from hookboard.measure import on_gpu

        shape, dim = LAYOUTS[self.layout]
        tensor = torch.empty(shape, device="meta", dtype=TYPES[self.dtype])
        form = on_gpu.form_of(tensor, dim, has_minus=False, with_abs_mean=True)
        assert form.constants["LAYOUT"] == self.layout
        return form


def source_of(variant: Variant) -> Any:
    """The source of the kernel."""
    from triton.compiler import ASTSource

    from hookboard.measure import on_gpu

    constants = {**variant.form().constants, "IS_ALIGNED": variant.aligned}
    pointers = {"values": f"*{variant.dtype}", "slab": "*fp64", "scratch": "*fp64", "counters": "*i32"}
    numbers = {"programs": "i32"} | dict.fromkeys(["row", "outer", "channels", "inner", "every"], "i64")
    numbers |= {"is_fresh": "i32"}
    signature = pointers | numbers | dict.fromkeys(constants, "constexpr")
    names = list(signature)
    aligned = range(0 if variant.aligned else 1, len(pointers))
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

    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source_of(variant), target=target, options=on_gpu.OPTIONS)


OF_A_FIRST_STEP = [*(Variant("bf16", layout) for layout in LAYOUTS), Variant("fp32", FIRST)]


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
