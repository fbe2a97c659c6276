"""The Triton kernels without a GPU: their numbers under Triton's interpreter, and what they compile to."""

import importlib.util
import inspect
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kernel_sources
import pytest
from kernel_sources import TYPES, compiled, merge_kernel, row_kernel

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton here")

HERE = Path(__file__).parent


@pytest.mark.spawns
def test_under_the_interpreter_every_number_is_true():
    """It must be chosen before Triton is imported: the cases of `interpreted.py` run in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "interpreted.py")]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]


EVERY = bool(os.environ.get("EVERY_VARIANT"))
"""Whether all variants are compiled, which takes minutes: `EVERY_VARIANT=1 pytest tests/measure/test_triton.py`.
Otherwise for each type and layout the one that does most, and one that does least."""


def variants() -> Iterator[tuple[str, int, bool, bool, bool, bool]]:
    """What the launcher can choose: type, layout, then whether there is a scale, abs_mean, bins, an aligned address."""
    for dtype, layout in itertools.product(TYPES, range(4)):
        if EVERY:
            yield from ((dtype, layout, *flags) for flags in itertools.product((True, False), repeat=4))
        else:
            yield dtype, layout, True, True, True, True
    if not EVERY:
        yield "fp32", 0, False, False, False, True


def compiles_by_constexprs() -> bool:
    """Whether Triton is asked to compile in today's way: older ones took other arguments."""
    try:
        from triton.compiler import ASTSource
    except ImportError:
        return False
    return "constexprs" in inspect.signature(ASTSource).parameters


@pytest.mark.large
@pytest.mark.skipif(not compiles_by_constexprs(), reason="this Triton is asked to compile in another way")
@pytest.mark.parametrize("capability", [80, 90, 120])
def test_every_variant_compiles_without_a_spill(capability, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for variant in variants():
        found = resources(row_kernel(capability, *variant), capability, tmp_path)
        assert (found["STACK"], found["LOCAL"]) == (0, 0), variant
        assert found["REG"] <= 168, f"{variant}: fewer than three programs fit on a multiprocessor"
        assert found["SHARED"] <= 48 << 10, f"{variant}: more shared memory than any card gives without asking"
    merging = resources(merge_kernel(), capability, tmp_path)
    assert (merging["STACK"], merging["LOCAL"]) == (0, 0)


@pytest.mark.spawns
@pytest.mark.skipif(not compiles_by_constexprs(), reason="this Triton is asked to compile in another way")
def test_the_kernels_of_a_first_due_step_take_few_seconds_to_compile():
    """CPU time: 3.0 to 4.5 s on two shared cores. Twice the 5 s that it may take is no mood of the machine."""
    command = [sys.executable, kernel_sources.__file__, "120"]  # which takes longest
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert float(said.split()[1]) < 10, said


def resources(source, capability, folder):
    """Registers, stack, local and shared memory of a kernel, as the driver would have them."""
    import triton

    kernel, cubin = compiled(source, capability), folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    told = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = {name: int(re.search(rf"{name}:(\d+)", told)[1]) for name in ("REG", "STACK", "LOCAL")}
    return {**found, "SHARED": kernel.metadata.shared}
