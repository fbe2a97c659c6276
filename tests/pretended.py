"""CUDA devices that are none: tensors on them say that they are, lie on the CPU, and tell of each wait for them."""

import concurrent.futures
import contextlib
import functools
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from lightning.pytorch.accelerators import CPUAccelerator
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hookboard
from hookboard.base import torch_private
from hookboard.loops import callback
from hookboard.measure import by_torch, memory, on_gpu
from hookboard.measure.row import merge

CUDA = torch.device("cuda", 0)
PACKAGE = str(Path(hookboard.__file__).parent)
GETTERS = {getattr(Tensor, name).__get__: name for name in ("device", "is_cuda", "is_cpu")}
DATA_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


PAGEABLE = 1 << 16
"""The bytes up to which a copy from ordinary memory does not wait, as CUDA's documents say."""

UPLOADS = ("tensor", "as_tensor", "asarray", "new_tensor")
"""They copy numbers of the host to the device, and wait until they are there."""


class Wait(NamedTuple):
    """A wait of the host for the device, in code of hookboard or what it calls."""

    thread: str
    what: str
    stack: str


class Pretended:
    """The devices: which tensors are on them, and who has waited for them."""

    def __init__(self):
        self.waits: list[Wait] = []
        self.pinned_bytes = 0
        self.kept_for_stream: list[Tensor] = []
        """What is not to be given to others before the current stream has done with it."""
        self._storages: dict[int, Any] = {}  # kept, so that no other tensor gets the address
        self._devices: dict[int, int] = {}
        self._pinned: dict[int, Any] = {}
        self._under_way: list[tuple[Tensor, Tensor]] = []
        self._arriving = threading.Lock()

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._storages

    def take(self, value: Any, index: int = 0) -> Any:
        """Put what an operation has returned on a device."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor) and tensor not in self:
                storage = tensor.untyped_storage()
                self._storages[storage._cdata], self._devices[storage._cdata] = storage, index
        return value

    def index_of(self, tensor: Tensor) -> int | None:
        """The number of its device; None on the host."""
        return self._devices[tensor.untyped_storage()._cdata] if tensor in self else None

    def pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.pinned_bytes += storage.nbytes()
        self._pinned[storage._cdata] = storage
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def wait(self, what: object) -> None:
        """The host waits; by then all copies have arrived."""
        stack = traceback.extract_stack()
        ours = [place for place, frame in enumerate(stack) if frame.filename.startswith(PACKAGE)]
        if ours:
            name = threading.current_thread().name
            self.waits.append(Wait(name, str(what), "".join(traceback.format_list(stack[ours[0] :]))))
        self.arrive()

    def send(self, into: Tensor, tensor: Tensor) -> None:
        """A copy to pinned memory, which holds nothing of use until somebody has waited."""
        with self._arriving:
            into.view(-1).view(torch.uint8).fill_(0xFF)
            self._under_way.append((into, tensor.clone()))

    def arrive(self) -> None:
        with self._arriving:
            for into, tensor in self._under_way:
                in_another_thread(into.copy_, tensor)
            self._under_way.clear()

    @contextlib.contextmanager
    def modes(self):
        """In this thread, until the end, tensors say where they are, in what hookboard computes too."""

        def seen(run, args, named):
            return run(*args, **named)

        of_events = mock.patch.object(callback, "run_unseen", seen)
        with mock.patch.object(torch_private, "run_unseen", seen), of_events, Functions(self), Operations(self):
            yield


def in_another_thread(function, *args):
    """Call it where no mode is on."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def is_cuda(device: Any) -> bool:
    return device is not None and not isinstance(device, Tensor) and torch.device(device).type == "cuda"


class Functions(TorchFunctionMode):
    """What Python asks of a tensor, and where it wants new ones."""

    def __init__(self, device: Pretended):
        super().__init__()
        self.pretended = device

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, mine = dict(kwargs or {}), self.pretended
        if function in GETTERS:
            has, getter = args[0] in mine, GETTERS[function]
            there = torch.device("cuda", mine.index_of(args[0])) if has else function(*args)
            return {"device": there, "is_cuda": has, "is_cpu": not has}[getter]
        name = getattr(function, "__name__", "")
        if function in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self.moved(name, *args, **kwargs)
        if name in ("numpy", "__array__") and args[0] in mine:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if name == "tolist" and args[0] in mine:
            mine.wait(name)
        if name == "is_pinned":
            return mine.is_pinned(args[0])
        if kwargs.pop("pin_memory", False):
            return mine.pin(function(*args, **kwargs))
        if is_cuda(kwargs.get("device")):
            made = function(*args, **kwargs | {"device": torch.device("cpu")})
            is_there = isinstance(args[0], Tensor) and args[0] in mine
            if name in UPLOADS and made.numel() and not is_there:
                mine.wait(f"an upload by {name}")
            return mine.take(made, torch.device(kwargs["device"]).index or 0)
        return function(*args, **kwargs)

    def moved(self, name, tensor, *args, copy=False, **kwargs):
        mine, there = self.pretended, tensor in self.pretended
        to, dtype, non_blocking, memory_format = there, None, kwargs.get("non_blocking", False), None
        index = mine.index_of(tensor) or 0
        if name != "to":
            to = name == "cuda"
        else:
            device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
            other = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("other")
            if other is not None:
                to, index = other in mine, mine.index_of(other) or 0
            elif device is not None:
                to, index = device.type == "cuda", device.index or 0
        options = {"dtype": dtype or tensor.dtype, "memory_format": memory_format or torch.preserve_format}
        if to is there and (not there or index == mine.index_of(tensor)):
            return tensor.to(**options, copy=copy)
        if to and there:  # from device to device nobody waits
            return mine.take(in_another_thread(functools.partial(tensor.to, **options, copy=True)), index)
        # From memory that is not page-locked, a copy of more than 64 KB is made by the host.
        is_slow = to and not mine.is_pinned(tensor) and tensor.numel() * tensor.element_size() > PAGEABLE
        if tensor.numel() and (not non_blocking or is_slow):
            mine.wait(f"a copy {'to' if to else 'from'} the device")
        moved = tensor.to(**options, copy=True)
        return mine.take(moved, index) if to else in_another_thread(moved.detach().clone)


class Operations(TorchDispatchMode):
    """What is computed where."""

    def __init__(self, device: Pretended):
        super().__init__()
        self.pretended = device

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, mine = kwargs or {}, self.pretended
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        places = {tensor in mine for tensor in given if tensor.dim() or tensor in mine}
        name = function.overloadpacket.__name__
        if name == "copy_" and len({tensor in mine for tensor in given}) == 2:
            return self.copied(*args, **kwargs)
        if True not in places:
            return function(*args, **kwargs)
        indices = {mine.index_of(tensor) for tensor in given if tensor in mine}
        if len(indices) > 1 and name != "copy_":
            raise RuntimeError(f"{function}: expected all tensors to be on the same device, but they are on {indices}")
        if len(places) == 2 and name.startswith("index"):
            mine.wait("a copy of indices to the device")
        elif len(places) == 2:
            raise RuntimeError(f"{function}: expected all tensors to be on the same device")
        if name == "histc" and not args[0].is_floating_point():  # on CUDA it counts integers too
            return mine.take(function(args[0].double(), *args[1:]).to(args[0].dtype), next(iter(indices)))
        if DATA_DEPENDENT & set(function.tags) and self.needs_values(name, given, kwargs):
            mine.wait(function)
        return mine.take(function(*args, **kwargs), next(iter(indices)))

    def needs_values(self, name, given, kwargs):
        """Whether the host has to know values for the operation itself or the shape of what it gives."""
        if name == "index":
            return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in given[1:])
        return name != "repeat_interleave" or kwargs.get("output_size") is None

    def copied(self, into, tensor, non_blocking=False):
        mine = self.pretended
        if into not in mine and non_blocking and mine.is_pinned(into):
            mine.send(into, tensor)
            return into
        if not non_blocking or into not in mine:
            mine.wait("a copy to the device" if into in mine else "a copy from the device")
        return into.copy_(tensor)


def pretend_cuda(device: Pretended, monkeypatch: Any) -> None:
    """Something stands in for each name of `torch.cuda` that is asked for."""

    class Event:
        """Is over when it is asked for the third time."""

        def __init__(self, **options: Any) -> None:
            self.questions = 0

        def record(self, stream: Any = None) -> None:
            pass

        def synchronize(self) -> None:
            device.wait("an event")

        def query(self) -> bool:
            self.questions += 1
            is_over = self.questions > 2
            if is_over:
                device.arrive()
            return is_over

    class Stream:
        def __init__(self, index: int) -> None:
            self.device = torch.device("cuda", index)
            self.cuda_stream = index

        def wait_event(self, event: Event) -> None:
            pass

        def wait_stream(self, stream: "Stream") -> None:
            pass

        def record_event(self) -> Event:
            return Event()

    streams = [Stream(index) for index in range(2)]
    stand_ins = {
        "Event": Event,
        "device": lambda device: contextlib.nullcontext(),
        "current_stream": lambda device=None: streams[0 if device is None else torch.device(device).index or 0],
        "current_device": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: SimpleNamespace(multi_processor_count=132),
        "get_rng_state": lambda device=None: None,  # it lies on the host
        "set_rng_state": lambda state, device=None: None,
        "synchronize": lambda device_of=None: device.wait("synchronize"),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(on_gpu, "stream_number", number_of_stream)


def number_of_stream(device: torch.device) -> int:
    return id(torch.cuda.current_stream(device))


class PretendedAccelerator(CPUAccelerator):
    """What Lightning trains on."""

    def setup_device(self, device: torch.device) -> None:
        pass


def pretend_kernels(device: Pretended, monkeypatch: Any) -> None:
    """The kernels of Triton are launched by code of ours, and what they would measure is measured on the CPU."""
    measure_into = on_gpu.measure_into

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return self.launched

        def launched(self, *given: Any, **constants: Any) -> None:
            indices = {device.index_of(tensor) for tensor in given[:4]}
            assert len(indices) == 1, f"the arguments lie on {indices}"
            assert None not in indices, "memory of the host was given"

    def measured(job: Any, slab: Tensor, bins: Tensor) -> bool:
        is_done = measure_into(job, slab, bins)
        if is_done:
            in_another_thread(as_kernels_do, *job[:-1], slab)
        return is_done

    monkeypatch.setattr(on_gpu, "_compiled", {})
    monkeypatch.setattr(on_gpu, "_failed", set())
    monkeypatch.setattr(on_gpu, "_workspaces", {})
    monkeypatch.setattr(on_gpu, "measure", Kernel())
    monkeypatch.setattr(on_gpu, "measure_into", measured)


def as_kernels_do(form: Any, values: Tensor, minus: Tensor | None, row: int, is_fresh: bool, slab: Tensor) -> None:
    """What the kernel does with a tensor, on the CPU."""
    _, outer, channels, inner, every = form.numbers
    layout = form.constants["LAYOUT"]

    def numbers(tensor: Tensor) -> Tensor:
        shape, stride = {
            memory.FIRST: ((channels, inner), (inner, 1)),
            memory.RUNS: ((outer, channels, inner), (channels * inner, inner, 1)),
            memory.LAST: ((outer, channels), (channels, 1)),
        }[layout]
        return tensor.detach().as_strided(shape, stride)

    values = numbers(values) if minus is None else numbers(values).float() - numbers(minus).float()
    dim = (0 if layout == memory.FIRST else 1) if every else None
    rows = by_torch.rows_of(values.double(), dim)
    own = slab[row : row + len(rows)]
    own.copy_(rows if is_fresh else merge(own, rows))
