"""The Triton kernels without a GPU: their numbers under Triton's interpreter, what they compile to, how they start."""

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hookboard.measure.memory import FIRST, LAST, RUNS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton here")

HERE = Path(__file__).parent

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

LAYOUTS = {
    FIRST: (torch.Size([4096, 4096]), 0),
    RUNS: (torch.Size([64, 256, 56, 56]), 1),
    LAST: (torch.Size([8192, 4096]), 1),
}
"""Of each layout a tensor that has it, and the dimension of its channels."""


KERNELS = [*(("bf16", layout) for layout in LAYOUTS), ("fp32", FIRST)]
"""Of a first due step: both loggers, histograms and `HealthMonitor`, for a model in bf16."""


def compiled(capability, dtype, layout):
    """What Triton makes for a card of this compute capability of the kernel that the launcher asks for."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hookboard.measure import on_gpu

    shape, dim = LAYOUTS[layout]
    tensor = torch.empty(shape, device="meta", dtype=TYPES[dtype])
    constants = on_gpu.form_of(tensor, dim, has_minus=False, with_abs_mean=True).constants | {"IS_ALIGNED": True}
    assert constants["LAYOUT"] == layout
    pointers = {"values": f"*{dtype}", "slab": "*fp64", "scratch": "*fp64", "counters": "*i32"}
    numbers = {"programs": "i32"} | dict.fromkeys(["row", "outer", "channels", "inner", "every"], "i64")
    numbers |= {"is_fresh": "i32"}
    signature = pointers | numbers | dict.fromkeys(constants, "constexpr")
    names = list(signature)
    source = ASTSource(
        on_gpu.measure,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in range(len(pointers))},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=on_gpu.OPTIONS)


@pytest.mark.spawns
@pytest.mark.xdist_group("kernels")  # it shares nothing with others that start processes, and takes longest
def test_under_the_interpreter_every_number_is_true():
    """It must be chosen before Triton is imported: the cases of `interpreted.py` run in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "interpreted.py")]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]


def compiles_by_constexprs():
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
def test_the_kernels_of_a_first_step_compile_with_hardly_a_spill(capability, tmp_path):
    for dtype, layout in KERNELS:
        found = resources(compiled(capability, dtype, layout), tmp_path)
        assert found["STACK"] <= 16, f"{dtype}, {layout}: more than four registers are kept in memory"
        assert found["LOCAL"] == 0, (dtype, layout)
        assert found["SHARED"] <= 48 << 10, f"{dtype}, {layout}: more than any card gives without asking"


def resources(kernel, folder):
    """Stack, local and shared memory of a kernel, as the driver would have them."""
    import triton

    (folder / "kernel.cubin").write_bytes(kernel.asm["cubin"])
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [program, "-res-usage", folder / "kernel.cubin"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: int(re.search(rf"{name}:(\d+)", told)[1]) for name in ("STACK", "LOCAL")}
    return {**found, "SHARED": kernel.metadata.shared}


@pytest.mark.spawns
@needs_today
@pytest.mark.parametrize("target", [("cuda", "90", "32"), ("hip", "gfx942", "64")], ids=["NVIDIA", "AMD"])
def test_a_variant_is_looked_up_once_and_then_launched_as_it_is(target, tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", HERE / "launched.py", *target]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    said = json.loads(run.stdout)
    assert all(said["worked"]), said
    assert not said["given up"]
    assert said["launched"] == 3
    # The second is not looked up; one that begins elsewhere is another variant. For AMD all are: Triton also compiles
    # for the size of a tensor's memory.
    assert said["looked up"] == (2 if target[0] == "cuda" else 3)
    first, second = said["same numbers"]
    assert first == second != []
