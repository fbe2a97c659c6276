"""What a process says, draws and holds in a step is the same with our callbacks."""

import atexit
import contextlib
import io
import logging
import os
import random
import signal
import sys
import threading
import warnings
from contextvars import ContextVar

import numpy as np
import pytest
import torch
from callbacks.user_program import IGNORED, Does, Effects, assert_the_same_is_seen, noting_warnings, surely
from torch import nn
from torch.nn.functional import mse_loss

pytestmark = pytest.mark.filterwarnings(*IGNORED)

effect = Effects()


def warned(action, during):
    def effect_of(user):
        user.around_fit = lambda: noting_warnings(user, action)
        user.during = lambda output: during(output) and None

    return effect_of


def warns_of_two_lines(output):
    for _ in range(2):
        warnings.warn("first", stacklevel=1)
        warnings.warn("second", stacklevel=1)


def warns_in_catching(output):
    warnings.warn("outside", stacklevel=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("inside", stacklevel=1)


def torch_warns(output):
    mse_loss(output, output.detach()[:1])
    torch.nn.functional.softmax(output)


def torch_warns_in_c(output):
    torch.tensor([1.0]).new_tensor(output.detach())


WARN = {
    "its own lines": warns_of_two_lines,
    "its own lines outside of catching": warns_in_catching,
    "a call of torch's": torch_warns,
    "torch in C": torch_warns_in_c,
}
effect |= {
    f"{action} is warned of {what}": warned(action, during)
    for action in ("default", "once")
    for what, during in WARN.items()
}


@effect
def filters_of_warnings_are_compared(user):
    def during(output):
        user.saw(len(warnings.filters), warnings.showwarning.__name__, sys.warnoptions)
        user.saw(bool(warnings.filters), [one[:1] for one in warnings.filters])

    user.during = during


class Records(logging.Handler):
    def __init__(self, user):
        super().__init__(logging.DEBUG)
        self.user = user

    def emit(self, record):
        if not record.getMessage().startswith("hookboard") and record.name != "lightning.pytorch.utilities.rank_zero":
            self.user.saw(record.name, record.levelname, record.getMessage().partition(" at ")[0])


@effect
def records_of_all_loggers_are_handled(user):
    @surely
    def around():
        root, handler = logging.getLogger(), Records(user)
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        yield
        root.removeHandler(handler)
        root.setLevel(level)

    user.around_fit = around
    user.during = lambda output: logging.getLogger("of the user").debug("a step")


class Written(io.StringIO):
    def __init__(self, user):
        super().__init__()
        self.user = user

    def write(self, text):
        if "hookboard" not in text:
            self.user.saw("written", text)
        return len(text)

    def flush(self):
        self.user.saw("flushed")


@effect
def streams_are_written_to(user):
    @surely
    def around():
        with contextlib.redirect_stdout(Written(user)), contextlib.redirect_stderr(Written(user)):
            yield

    user.around_fit = around
    user.during = lambda output: print("a step")


@effect
def states_of_generators_are_compared(user):
    def state(*args):
        user.saw(hash(bytes(torch.get_rng_state().numpy())), random.getstate()[1][-1], np.random.get_state()[2])
        user.saw(torch.initial_seed())

    for layer in user.net:
        layer.register_forward_hook(lambda *args: state() and None)
        layer.register_full_backward_hook(lambda *args: state() and None)


@effect
def secrets_and_hashes_are_asked(user):
    class Keyed:
        def __hash__(self):
            user.saw("hash")
            return 7

        def __eq__(self, other):
            user.saw("eq")
            return self is other

    key = Keyed()
    user.net.held = {key: 1}
    user.data = [{"x": batch, key: 1} for batch in user.data]
    user.given = lambda batch: batch["x"]


OPTIONAL = """
transformers accelerate peft wandb mlflow comet_ml pandas matplotlib plotly torchvision torchcam fastai sklearn scipy
IPython
"""


def world():
    """What belongs to the whole process."""
    yield "optional packages", [name for name in OPTIONAL.split() if name in sys.modules]
    yield "environment", sorted(os.environ)
    yield "signals", [type(signal.getsignal(one)).__name__ for one in (signal.SIGINT, signal.SIGTERM)]
    yield "threads", sorted(one.name for one in threading.enumerate())
    yield "hooks", [id(one) for one in (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook)]
    yield "imports", [len(sys.meta_path), len(sys.path_hooks), len(sys.path)]
    yield "folder", os.getcwd()
    yield "streams", [id(sys.stdout), id(sys.stderr), id(sys.stdin)]
    yield "limits", [sys.getrecursionlimit(), sys.getswitchinterval()]
    yield "tracing", [sys.gettrace(), sys.getprofile()]
    yield "NumPy", [sorted(np.geterr().items()), np.get_printoptions()["precision"]]
    yield "files", len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    yield "exits", atexit._ncallbacks()
    yield "flags", [torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled]


@effect
def the_process_is_looked_at_in_a_forward(user):
    def look(x):
        for one in world():
            user.saw(*one)
        user.saw([sorted(vars(module)) for module in nn.Module.modules(user.net)])
        user.saw([sorted(vars(p)) for p in nn.Module.parameters(user.net)])
        return x * 1

    user.net.append(Does(look))
    user.at_end.append(lambda: [user.saw(*one) for one in world()])


@effect
def a_context_variable_counts(user):
    variable = ContextVar("of the user", default=0)

    def count(x):
        variable.set(variable.get() + 1)
        user.saw(variable.get())
        return torch.relu(x) + x

    user.net.append(Does(count))


@effect
def layers_run_in_threads(user):
    def in_threads(x):
        found = [None, None]

        def work(index):
            found[index] = layers[index](x)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
            thread.join()
        user.saw(len(threads))
        return found[0] + found[1]

    layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    user.net.append(Does(in_threads))
    user.net[-1].layers = layers


@pytest.mark.parametrize(("make", "way"), effect.cases("in a Trainer"))
def test_user_code_sees_the_same_with_callbacks(make, way):
    assert_the_same_is_seen(make, way)
