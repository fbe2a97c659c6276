"""Triton's real launcher over a driver that does nothing: test_launcher.py runs this file, once for each target.

    python tests/measure/launched.py cuda 90 32
    python tests/measure/launched.py hip gfx942 64

It prints as JSON what was launched, what the launcher had to find out, and whether a kernel was given up.
"""

import json
import sys
from types import SimpleNamespace

import torch
import triton
from hookboard.measure.accelerator import Target, job_of, new_rows
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from hookboard.measure import accelerator

launched = []


class Launcher:
    """In place of what calls the driver with the arguments of a kernel."""

    def __init__(self, source, metadata):
        self.name = source.fn.__name__

    def __call__(self, *given):
        launched.append((self.name, given[9:]))  # after the grid, the stream, the kernel and what watches it


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


def measured(tensor):
    job = job_of(tensor)
    return accelerator.measure_into(Target(job, new_rows(job.rows, tensor.device), True, None), with_abs_mean=True)


def main(backend, architecture, warp):
    architecture = int(architecture) if architecture.isdigit() else architecture
    driver.set_active(Driver(GPUTarget(backend, architecture, int(warp))))
    accelerator.DEVICES.add("cpu")
    found, run = [], JITFunction.run
    JITFunction.run = lambda self, *given, **options: found.append(self.__name__) or run(self, *given, **options)
    tensor = torch.zeros(64, 256)
    worked = [measured(tensor), measured(tensor), measured(tensor.view(-1)[1:])]
    job = job_of(tensor)
    targets = [Target(job, new_rows(1, tensor.device), True, None) for _ in range(3)]
    worked += [not accelerator.measure_all_into(targets, with_abs_mean=False) for _ in range(2)]
    print(
        json.dumps(
            {
                "worked": worked,
                "launched": [name for name, _ in launched],
                "looked up": found,
                "same numbers": [each[7:] for _, each in launched[:2]],
                "same of many": [each[4:] for _, each in launched[-2:]],
                "given up": len(accelerator._state.failed),
                "triton": triton.__version__,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
