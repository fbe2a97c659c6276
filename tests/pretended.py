"""A CUDA device that is none: tensors on it say that they are, lie on the CPU, and tell of each wait for them."""

import concurrent.futures
import threading
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch.accelerators import CPUAccelerator
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hookboard

CUDA = torch.device("cuda", 0)
PACKAGE = str(Path(hookboard.__file__).parent)
GETTERS = {getattr(Tensor, name).__get__: name for name in ("device", "is_cuda", "is_cpu")}
DATA_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


UPLOADS = ("tensor", "as_tensor", "asarray", "new_tensor")
"""They copy numbers of the host to the device, and wait until they are there."""


class Wait(NamedTuple):
    """A wait of the host for the device, in code of hookboard or what it calls."""

    thread: str
    what: str
    stack: str


class Pretended:
    """The device: which tensors are on it, and who has waited for it."""

    def __init__(self):
        self.waits: list[Wait] = []
        self._storages: dict[int, Any] = {}  # kept, so that no other tensor gets the address
        self._pinned: dict[int, Any] = {}
        self._under_way: list[tuple[Tensor, Tensor]] = []
        self._arriving = threading.Lock()

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._storages

    def take(self, value: Any) -> Any:
        """Put what an operation has returned on the device."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = storage
        return value

    def pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
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

    @contextmanager
    def modes(self):
        """In this thread, until the end, tensors say where they are."""
        with Functions(self), Operations(self):
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
            return {"device": CUDA if has else function(*args), "is_cuda": has, "is_cpu": not has}[getter]
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
            return mine.take(made)
        return function(*args, **kwargs)

    def moved(self, name, tensor, *args, copy=False, **kwargs):
        mine, there = self.pretended, tensor in self.pretended
        to, dtype, non_blocking, memory_format = there, None, kwargs.get("non_blocking", False), None
        if name != "to":
            to = name == "cuda"
        else:
            device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
            other = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("other")
            if other is not None:
                to = other in mine
            elif device is not None:
                to = device.type == "cuda"
        options = {"dtype": dtype or tensor.dtype, "memory_format": memory_format or torch.preserve_format}
        if to is there:
            return tensor.to(**options, copy=copy)
        if tensor.numel() and not non_blocking:
            mine.wait(f"a copy {'to' if to else 'from'} the device")
        moved = tensor.to(**options, copy=True)
        return mine.take(moved) if to else in_another_thread(moved.detach().clone)


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
        if len(places) == 2 and name.startswith("index"):
            mine.wait("a copy of indices to the device")
        elif len(places) == 2:
            raise RuntimeError(f"{function}: expected all tensors to be on the same device")
        if DATA_DEPENDENT & set(function.tags) and self.needs_values(name, given, kwargs):
            mine.wait(function)
        return mine.take(function(*args, **kwargs))

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


def pretended_cuda(device: Pretended):
    """What stands in for names of `torch.cuda`."""

    class Event:
        is_over = False

        def __init__(self, **options: Any) -> None:
            pass

        def record(self, stream: Any = None) -> None:
            pass

        def synchronize(self) -> None:
            if not self.is_over:
                device.wait("an event")
            self.is_over = True

        def query(self) -> bool:
            device.arrive()
            return True

    class Stream:
        device = CUDA

        def wait_event(self, event: Event) -> None:
            pass

        def wait_stream(self, stream: "Stream") -> None:
            pass

        def record_event(self) -> Event:
            return Event()

    stream = Stream()
    return {
        "Event": Event,
        "current_stream": lambda device=None: stream,
        "current_device": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "get_device_capability": lambda device=None: (9, 0),
        "get_rng_state": lambda device=None: None,  # it lies on the host
        "set_rng_state": lambda state, device=None: None,
        "synchronize": lambda device_of=None: device.wait("synchronize"),
    }


class PretendedAccelerator(CPUAccelerator):
    """What Lightning trains on."""

    def setup_device(self, device: torch.device) -> None:
        pass
