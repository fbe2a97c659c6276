"""The Triton kernels without a GPU: their numbers under Triton's interpreter, and what they compile to."""

import importlib.util
import inspect
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_sources import LAYOUTS, OF_A_FIRST_STEP, TYPES, Variant, compiled

from hookboard.measure import memory

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton here")

HERE = Path(__file__).parent


@pytest.mark.spawns
@pytest.mark.xdist_group("kernels")  # it shares nothing with others that start processes, and takes longest
def test_under_the_interpreter_every_number_is_true():
    """It must be chosen before Triton is imported: the cases of `interpreted.py` run in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "interpreted.py")]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]


EVERY = bool(os.environ.get("EVERY_VARIANT"))
"""Whether all variants are compiled, which takes minutes: `EVERY_VARIANT=1 pytest tests/measure/test_triton.py`.
Otherwise for each layout the one that does most, and some that do less."""


def variants() -> Iterator[Variant]:
    """What the launcher can choose."""
    for layout in LAYOUTS:
        if EVERY:
            for dtype, aligned in itertools.product(TYPES, (True, False)):
                yield Variant(dtype, layout, aligned)
        else:
            yield Variant("bf16", layout)
    if not EVERY:
        yield Variant("fp32", memory.FIRST)


def compiles_by_constexprs() -> bool:
    """Whether Triton is asked to compile in today's way: older ones took other arguments."""
    try:
        from triton.compiler import ASTSource
    except ImportError:
        return False
    return "constexprs" in inspect.signature(ASTSource).parameters


needs_today = pytest.mark.skipif(not compiles_by_constexprs(), reason="this Triton is asked to compile in another way")


@pytest.fixture(autouse=True, scope="module")
def no_kernels_are_on_disk_at_first(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.mark.large
@needs_today
@pytest.mark.parametrize("capability", [90, 120])
def test_every_variant_compiles_with_hardly_a_spill(capability, tmp_path):
    for variant in variants() if capability == 90 or EVERY else OF_A_FIRST_STEP[::3]:
        found = resources(compiled(capability, variant), tmp_path)
        assert found["STACK"] <= 16, f"{variant}: more than four registers are kept in memory"
        assert found["LOCAL"] == 0, variant
        assert found["SHARED"] <= 48 << 10, f"{variant}: more shared memory than any card gives without asking"


@pytest.mark.large
@needs_today
@pytest.mark.parametrize(("dtype", "layout"), [*(("bf16", layout) for layout in LAYOUTS), ("fp32", memory.FIRST)])
def test_values_are_loaded_16_bytes_at_once_in_a_loop_without_a_barrier(dtype, layout, tmp_path):
    variant = Variant(dtype, layout)
    loop = loop_over_tiles(compiled(90, variant), tmp_path)
    loads = Counter(operation for operation in loop if operation.startswith("LDG"))
    constants = variant.form().constants
    at_once = constants["ROWS"] * constants["WIDE"] // (32 * 4) * TYPES[dtype].itemsize // 16
    # The last tile of a tensor has loads of its own, with a mask.
    assert loads["LDG.E.128"] == at_once, loads
    crossing = [operation for operation in loop if operation.startswith(("BAR", "SHFL", "STS", "LDS", "RED", "ATOM"))]
    assert not crossing, crossing


def tool(name, *arguments):
    import triton

    command = [Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cubin_of(kernel, folder):
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    return cubin


def resources(kernel, folder):
    """Registers, stack, local and shared memory of a kernel, as the driver would have them."""
    told = tool("cuobjdump", "-res-usage", cubin_of(kernel, folder))
    found = {name: int(re.search(rf"{name}:(\d+)", told)[1]) for name in ("REG", "STACK", "LOCAL")}
    return {**found, "SHARED": kernel.metadata.shared}


def disassembled(kernel, folder):
    """The operations of a kernel in their order, and the first and last of each loop."""
    operations, labels, loops = [], {}, []
    for line in tool("nvdisasm", "-c", cubin_of(kernel, folder)).splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = len(operations)
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)", line):
            back = re.search(r"\((\.L_x_\d+)\)", found[2])
            if found[1].startswith("BRA") and back and back[1] in labels:
                loops.append((labels[back[1]], len(operations)))
            operations.append(found[1])
    return operations, loops


def loop_over_tiles(kernel, folder):
    """The operations of the innermost loop that loads 16 bytes at once and squares them."""
    operations, loops = disassembled(kernel, folder)
    bodies = [operations[first : last + 1] for first, last in loops]
    return min((body for body in bodies if {"LDG.E.128", "DFMA"} <= {*body}), key=len)
