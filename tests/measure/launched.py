"""Triton's real launcher over a driver that does nothing: test_triton.py runs this file, once for each target.

    python tests/measure/launched.py cuda 90 32
    python tests/measure/launched.py hip gfx942 64

It prints as JSON what was launched, what the launcher had to find out, and whether a kernel was given up.
"""

import json
import sys
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from hookboard.measure import memory, on_gpu

launched = []


class Launcher:
    """In place of what calls the driver with the arguments of a kernel."""

    def __init__(self, source, metadata):
        pass

    def __call__(self, *given):
        launched.append(given[9:])  # after the grid, the stream, the kernel and what watches it


class Driver:
    """As Triton asks for it."""

    launcher_cls = Launcher

    def __init__(self, target):
        self.target = target
        sizes = {
            "max_shared_mem": 65536,
            "multiprocessor_count": 100,
            "max_num_regs": 65536,
            "warpSize": target.warp_size,
        }
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: sizes,
            load_binary=lambda *given: (1, 2, 100, 0, 1024),
            unload_module=lambda *given: None,
        )

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0

    def get_current_target(self):
        return self.target


def job_of(tensor):
    form = on_gpu.form_of(tensor, has_minus=False, with_abs_mean=True)
    return form, tensor, None, 0, True, -1


def main(backend, architecture, warp):
    architecture = int(architecture) if architecture.isdigit() else architecture
    driver.set_active(Driver(GPUTarget(backend, architecture, int(warp))))
    memory.DEVICES.add("cpu")
    found, run = [], JITFunction.run
    JITFunction.run = lambda self, *given, **options: found.append(self.__name__) or run(self, *given, **options)
    tensor, slab = torch.zeros(64, 256), torch.zeros(3, 10, dtype=torch.float64)
    bins = torch.zeros(0, 8192, dtype=torch.int64)
    worked = [on_gpu.measure_into(job_of(each), slab, bins) for each in (tensor, tensor, tensor.view(-1)[1:])]
    print(
        json.dumps(
            {
                "worked": worked,
                "launched": len(launched),
                "looked up": len(found),
                "same numbers": [each[4:] for each in launched[:2]],
                "given up": len(on_gpu._failed),
                "triton": triton.__version__,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
