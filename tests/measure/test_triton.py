"""The Triton kernels without a GPU: their numbers under Triton's interpreter, and what they compile to."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton here")

HERE = Path(__file__).parent


@pytest.mark.spawns
def test_under_the_interpreter_every_number_is_true():
    """It must be chosen before Triton is imported: the cases of `interpreted.py` run in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "interpreted.py")]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]


SIGNATURE = {
    "values": "",
    "scale": "*fp32",
    "counts": "*i64",
    "rows": "*fp64",
    "elements": "i64",
    "channels": "i64",
    "inner": "i64",
}

VARIANTS = [
    (capability, dtype, layout, has_scale, has_bins)
    for capability in (80, 90, 120)
    for dtype in ("fp32", "bf16", "fp16", "fp64")
    for layout, has_scale, has_bins in [
        (0, True, True),
        (0, False, False),
        (1, True, True),
        (2, True, True),
        (3, True, True),
    ]
]


@pytest.mark.large
@pytest.mark.parametrize("capability", [80, 90, 120])
def test_every_variant_compiles_without_a_spill(capability, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for variant in VARIANTS:
        if variant[0] == capability:
            registers, stack, local = resources(*variant, tmp_path)
            assert (stack, local) == (0, 0), variant
            assert registers <= 168, f"{variant}: fewer than three programs fit on a multiprocessor"


def resources(capability, dtype, layout, has_scale, has_bins, folder):
    """Registers, stack and local memory of a variant, as the driver would have them."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hookboard.measure import accelerator, triton_kernel

    values, width = accelerator.TILES[("flat", "spread", "last", "last")[layout]]
    constants = {
        "LAYOUT": layout,
        "ROWS": values,
        "CHANNELS": width,
        "PAIRS": capability == 120 and dtype != "fp64",
        "HAS_SCALE": has_scale,
        "HAS_ABS_MEAN": True,
        "HAS_BINS": has_bins,
    }
    signature = {**SIGNATURE, "values": f"*{dtype}", **dict.fromkeys(constants, "constexpr")}
    names = list(signature)
    source = ASTSource(
        triton_kernel.rows_of,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in range(4)},
    )
    options = {"num_warps": accelerator.WARPS, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    told = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    return [int(re.search(rf"{name}:(\d+)", told)[1]) for name in ("REG", "STACK", "LOCAL")]
