"""A fit whose first step was read beforehand is the same, bit for bit, as one without a monitor."""

import array
import collections
import copy
import functools
import gc
import itertools
import logging
import os
import random
import sys
import types
import warnings
import weakref

import noted
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.nn.functional import cosine_similarity, mse_loss
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric
from toys import batches, encoder, fit, newer_torch, sequences, trainer

from hookboard import HealthMonitor

pytestmark = [
    pytest.mark.trains,
    pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step"),  # a SequentialLR of torch 2.6
]


class Plain(LightningModule):
    """Draws random numbers, counts, logs, and keeps its losses."""

    def __init__(self, net=None):
        super().__init__()
        torch.manual_seed(1)
        self.net = net or nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 4))
        self.metric = MeanMetric()
        self.count = 0
        self.seen = {"batches": []}
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = self.loss_of(batch)
        self.keep(loss, batch_idx)
        return loss

    def loss_of(self, batch):
        return mse_loss(self.net(batch), batch)

    def keep(self, loss, batch_idx):
        self.losses.append(loss.detach().clone())
        self.count += 1
        self.seen["batches"].append((batch_idx, random.random(), np.random.rand()))
        self.metric(loss.detach())
        self.seen["metric"] = (self.metric.update_count, self.metric.compute())
        self.log("loss", loss, batch_size=8)
        self.log("metric", self.metric, batch_size=8)

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class DrawsWithItsOwnGenerator(Plain):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def loss_of(self, batch):
        return super().loss_of(batch + torch.randn(batch.shape, generator=self.generator))


GENERATOR = torch.Generator()


class DrawsWithAGlobalGenerator(Plain):
    def __init__(self):
        super().__init__()
        GENERATOR.manual_seed(3)

    def loss_of(self, batch):
        return super().loss_of(batch + torch.randn(batch.shape, generator=GENERATOR))


class AveragesItsWeights(Plain):
    """Its teacher's weights are changed in every step: through `data`, by a method of `Parameter`, and by foreach."""

    def __init__(self):
        super().__init__()
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    def loss_of(self, batch):
        with torch.no_grad():
            pairs = list(zip(self.teacher.parameters(), self.net.parameters(), strict=True))
            for average, weight in pairs[:2]:
                average.data.mul_(0.9).add_(0.1 * weight.data + 0.01)
            for average, weight in pairs[2:4]:
                average.copy_(0.9 * average + 0.1 * weight + 0.01)
            torch._foreach_add_([average for average, _ in pairs[4:]], 0.01)
            pairs[0][0].data = pairs[0][0].data * 1.01
        return -cosine_similarity(self.net(batch), self.teacher(batch)).mean()


def moved(average: torch.Tensor, weight: torch.Tensor):
    average.mul_(0.9).add_(weight, alpha=0.2)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it is deprecated
    scripted = torch.jit.script(moved)


class AveragesPastPython(Plain):
    """By scripted code, by operators of torch, and in the memory of NumPy; its teacher is no module of the model."""

    def __init__(self):
        super().__init__()
        self.teachers = [copy.deepcopy(self.net).requires_grad_(False)]

    def loss_of(self, batch):
        [teacher] = self.teachers
        first, second, *others = zip(teacher.parameters(), self.net.parameters(), strict=True)
        scripted(*first)
        torch.ops.aten.add_(second[0], second[1].detach())
        for average, _ in others:
            average.numpy()[...] *= 0.9
        return mse_loss(self.net(batch), teacher(batch))


class RenormsItsEmbedding(Plain):
    def __init__(self):
        super().__init__(nn.Sequential(nn.Embedding(4, 4, max_norm=0.5), nn.Linear(4, 4)))

    def loss_of(self, batch):
        return self.net(batch.argmax(1)).square().mean()


class ChangesItsBatch(Plain):
    def loss_of(self, batch):
        batch.mul_(2)
        return super().loss_of(batch)


class WantsTheGradientOfItsBatch(Plain):
    def loss_of(self, batch):
        loss = super().loss_of(batch) * (2 if batch.requires_grad else 1)
        batch.requires_grad_()
        return loss


class ChangesItsOptimizer(Plain):
    """The state that it was given, and that of earlier steps."""

    def loss_of(self, batch):
        for number, state in enumerate(self.trainer.optimizers[0].state.values()):
            state["momentum_buffer"].mul_(0.5)
            state["number"] = state.get("number", number) + 1
        return super().loss_of(batch)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        for parameter in self.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
        return optimizer


class CountsOutsideOfItself(Plain):
    """In the environment, in its Trainer, and in an array of Python's."""

    def __init__(self):
        super().__init__()
        os.environ["CALLS"] = "0"
        self.numbers = array.array("i", [0])

    def loss_of(self, batch):
        os.environ["CALLS"] = str(int(os.environ["CALLS"]) + 1)
        self.trainer.calls = getattr(self.trainer, "calls", 0) + 1
        self.numbers[0] += 1
        return super().loss_of(batch) * (int(os.environ["CALLS"]) + self.trainer.calls + self.numbers[0])


QUEUE = torch.zeros(4)


class ChangesAGlobalTensor(Plain):
    def __init__(self):
        super().__init__()
        QUEUE.zero_()

    def loss_of(self, batch):
        loss = super().loss_of(batch + QUEUE)
        QUEUE.add_(1)
        return loss


class Compiled(Plain):
    def __init__(self):
        super().__init__()
        self.net = torch.compile(self.net, backend="aot_eager")


@functools.partial(torch.compile, fullgraph=True, backend="aot_eager")
def compiled_loss(output, target):
    return (output - target).square().mean()


class CallsACompiledFunction(Plain):
    def loss_of(self, batch):
        return compiled_loss(self.net(batch), batch)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Decorated(Plain):
    @decorated
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)


class TakesNoIndex(Plain):
    def training_step(self, batch):
        return super().training_step(batch, 0)


class Transformer(Plain):
    """Half of it runs in evaluation mode, where torch has a fast way of its own."""

    def __init__(self):
        super().__init__(encoder(dropout=0.1))
        self.teacher = encoder().eval().requires_grad_(False)

    def on_train_batch_start(self, batch, batch_idx):
        self.teacher.eval()

    def loss_of(self, batch):
        with torch.no_grad():
            wanted = self.teacher(batch)
        return mse_loss(self.net(batch), wanted)


class Manual(Plain):
    """Two optimizers, each with its loss, and everything that manual optimization calls."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.critic = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        loss = self.loss_of(batch) - self.critic(self.net(batch)).mean()
        first.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(first, 0.1, "norm")
        first.step()
        self.untoggle_optimizer(first)
        critical = self.critic(self.net(batch).detach()).mean() - self.critic(batch).mean()
        second.zero_grad()
        self.manual_backward(critical)
        second.step()
        self.lr_schedulers().step()
        self.keep(loss + critical, batch_idx)

    def configure_optimizers(self):
        first = torch.optim.Adam(self.net.parameters(), lr=0.01)
        return [first, torch.optim.SGD(self.critic.parameters(), lr=0.01)], [
            torch.optim.lr_scheduler.ExponentialLR(first, 0.5)
        ]


class CallsBackwardByHand(Manual):
    """Without Lightning's `manual_backward`; reads a gradient afterwards."""

    def training_step(self, batch, batch_idx):
        first, _ = self.optimizers()
        self.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        self.keep(loss, batch_idx)
        self.log("gradient", self.net[0].weight.grad.norm())
        first.step()


class FeelsForItsBatch(Plain):
    """Calls backward inside of the step, to change its batch."""

    def loss_of(self, batch):
        given = batch.clone().requires_grad_()
        super().loss_of(given).backward()
        self.zero_grad()
        return super().loss_of(batch + 0.1 * given.grad.sign())


class SetsItsRate(Plain):
    """In the step itself, although its optimization is automatic."""

    def loss_of(self, batch):
        self.optimizers().param_groups[0]["lr"] *= 0.5
        self.lr_schedulers().step()
        return super().loss_of(batch)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        first = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=2)
        then = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        return [optimizer], [torch.optim.lr_scheduler.SequentialLR(optimizer, [first, then], [1])]


SEEN, COUNT = [], 0


def counted(loss):
    global COUNT
    COUNT += 1
    SEEN.append(float(loss.detach()))
    return loss


class Makes(collections.OrderedDict):
    """Holds classes, and gives objects of them, as the activations of some models of others do."""

    def __getitem__(self, name):
        return super().__getitem__(name)()


class HoldsADictOfItsOwnKind(Plain):
    def __init__(self):
        super().__init__()
        self.kinds = Makes(relu=nn.ReLU)

    def loss_of(self, batch):
        return super().loss_of(self.kinds["relu"](batch))


class NotesInVariables(Plain):
    """In global ones, by a function of its own, and in those of a hook."""

    def __init__(self):
        super().__init__()
        global COUNT
        COUNT = 0
        SEEN.clear()
        calls, outputs = 0, []

        def hook(module, args, output):
            nonlocal calls
            calls += 1
            outputs.append(calls)
            return output * (1 + 0.1 * len(outputs))

        self.net.register_forward_hook(hook)

    def loss_of(self, batch):
        return counted(super().loss_of(batch)) * (1 + COUNT + len(SEEN))


class MakesAGlobalVariable(Plain):
    def __init__(self):
        super().__init__()
        globals().pop("MADE", None)

    def loss_of(self, batch):
        global MADE
        try:
            MADE += 1
        except NameError:
            MADE = 1
        return super().loss_of(batch) * MADE


class NotesInItsClass(Plain):
    """In a number and a list of its class, and in the default of an argument."""

    calls = 0
    kept = []  # noqa: RUF012  # that is the point

    def __init__(self):
        super().__init__()
        type(self).calls = 0
        self.kept.clear()
        self.times.__defaults__[0].clear()

    def times(self, seen=[]):  # noqa: B006  # that is the point
        seen.append(1)
        return len(seen)

    def loss_of(self, batch):
        type(self).calls += 1
        self.kept.append(1)
        return super().loss_of(batch) * (self.calls + len(self.kept) + self.times())


OF_NUMPY, OF_PYTHON = np.random.default_rng(0), random.Random(0)


class DrawsWithGlobalGeneratorsOfOthers(Plain):
    def __init__(self):
        super().__init__()
        global OF_NUMPY, OF_PYTHON
        OF_NUMPY, OF_PYTHON = np.random.default_rng(0), random.Random(0)

    def loss_of(self, batch):
        return super().loss_of(batch) * (OF_NUMPY.random() + OF_PYTHON.random())


class NotesInAnotherFile(Plain):
    """In a variable of a file that it imports, and in an object from there."""

    def __init__(self):
        super().__init__()
        noted.COUNT, noted.TALLY.count = 0, 0

    def loss_of(self, batch):
        noted.COUNT += 1
        noted.TALLY.add()
        return super().loss_of(batch) * (noted.COUNT + noted.TALLY.count)


@functools.lru_cache
def projection(size):
    return torch.randn(size, size)


class CachesWhatItDraws(Plain):
    def __init__(self):
        super().__init__()
        projection.cache_clear()

    def loss_of(self, batch):
        return super().loss_of(batch @ projection(4))


class MakesAnew(collections.OrderedDict):
    """Gives a new object each time, as the table of activations in transformers."""

    def __getitem__(self, name):
        return super().__getitem__(name)()


class DocumentsItself:
    __slots__ = ("__doc__", "count")

    def __init__(self):
        self.count = 0


class HoldsOddObjects(Plain):
    def __init__(self):
        super().__init__()
        self.made, self.odd = MakesAnew(first=nn.ReLU, second=nn.Tanh), DocumentsItself()

    def loss_of(self, batch):
        self.made.move_to_end("first")
        self.odd.count += 1
        [name, *_] = self.made
        return super().loss_of(self.made[name](batch)) * self.odd.count


class GrowsWhenItIsCalledFirst(Plain):
    """Adds a hook and a layer at the first call, and notes that it has, as some models of others do."""

    def __init__(self):
        super().__init__()
        self.is_grown = False

    def loss_of(self, batch):
        if not self.is_grown:
            self.is_grown = True
            self.net.register_forward_hook(lambda module, args, output: output * 1.1)
            self.late = nn.Linear(4, 4)
        return super().loss_of(batch) + self.late(batch).square().mean()


class Lbfgs(Plain):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)


class HoldsAnIterator(Plain):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count()

    def loss_of(self, batch):
        return super().loss_of(batch) * (1 + next(self.numbers))


class StepsAnOptimizerOfItsOwn(Plain):
    def __init__(self):
        super().__init__()
        self.extra = nn.Parameter(torch.ones(4))
        self.own = torch.optim.Adam([self.extra], lr=0.1)

    def loss_of(self, batch):
        self.extra.grad = torch.ones(4)
        self.own.step()
        return super().loss_of(batch * self.extra.detach())


class TakesAnIterator(Plain):
    def training_step(self, dataloader_iter):
        batch, batch_idx, _ = next(dataloader_iter)
        return super().training_step(batch, batch_idx)


def data():
    return batches(*[8] * 4)


def numbers_of(model, run):
    optimizers = [optimizer.state_dict()["state"] for optimizer in run.optimizers]
    random_state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
    gradients = [parameter.grad for parameter in model.parameters()]
    plain = model.count, model.seen, run.global_step, dict(run.logged_metrics)
    return model.losses, model.state_dict(), gradients, optimizers, random_state, plain


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def trained(kind, given, *callbacks, **options):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = kind()
    run = fit(None, model, given, *callbacks, **options)
    return numbers_of(model, run)


def said_by_reading(caplog):
    return [record.message for record in caplog.records if "the training step was not read" in record.message]


def assert_no_trace(kind, caplog, given=None, why="", **options):
    made = {name: make() for name, make in options.items()}
    bare = trained(kind, given or data(), **made)
    caplog.clear()
    made = {name: make() for name, make in options.items()}
    watched = trained(kind, given or data(), HealthMonitor(), **made)
    parts = ("losses", "weights", "gradients", "optimizers", "random state", "rest")
    assert [name for name, one, other in zip(parts, bare, watched, strict=True) if not same(one, other)] == []
    said = said_by_reading(caplog)
    assert why in said[0] if why else not said, said


READ = [
    Plain,
    DrawsWithItsOwnGenerator,
    DrawsWithAGlobalGenerator,
    AveragesItsWeights,
    AveragesPastPython,
    RenormsItsEmbedding,
    ChangesItsBatch,
    WantsTheGradientOfItsBatch,
    ChangesItsOptimizer,
    CountsOutsideOfItself,
    ChangesAGlobalTensor,
    Decorated,
    TakesNoIndex,
    Manual,
    SetsItsRate,
    NotesInVariables,
    MakesAGlobalVariable,
    HoldsADictOfItsOwnKind,
    NotesInItsClass,
    NotesInAnotherFile,
    DrawsWithGlobalGeneratorsOfOthers,
    CachesWhatItDraws,
    HoldsOddObjects,
    CallsBackwardByHand,
    Lbfgs,
]


@pytest.mark.parametrize("kind", READ)
def test_a_step_that_is_read_leaves_no_trace(kind, caplog):
    assert_no_trace(kind, caplog)


@pytest.mark.filterwarnings("ignore:hookboard. HealthMonitor. the model has changed")
def test_what_a_model_adds_to_itself_in_its_first_call_is_added_once(caplog):
    assert_no_trace(GrowsWhenItIsCalledFirst, caplog)


class KeepsOutputs(Callback):
    def __init__(self):
        self.outputs = []

    def on_train_start(self, trainer, pl_module):
        pl_module.net.register_forward_hook(self.hook)

    def hook(self, module, args, output):
        self.outputs.append(len(self.outputs))
        return output * (1 + len(self.outputs))


def test_a_hook_of_another_callback_sees_each_batch_once(caplog):
    kept = KeepsOutputs()
    bare, watched = trained(Plain, data(), KeepsOutputs()), trained(Plain, data(), kept, HealthMonitor())
    assert same(bare, watched)
    assert kept.outputs == [0, 1, 2, 3]
    assert not said_by_reading(caplog)


@newer_torch
@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("kind", [Compiled, CallsACompiledFunction])
def test_a_compiled_step_that_is_read_leaves_no_trace(kind, caplog):
    assert_no_trace(kind, caplog)


@pytest.mark.filterwarnings("ignore:Found .* in eval mode")
def test_layers_that_torch_fuses_take_the_same_way(caplog):
    assert_no_trace(Transformer, caplog, sequences(*[8] * 4))


def test_accumulated_gradients_are_the_same(caplog):
    assert_no_trace(Plain, caplog, accumulate_grad_batches=lambda: 2)


def test_mixed_precision_is_the_same(caplog):
    assert_no_trace(Plain, caplog, plugins=lambda: MixedPrecision("bf16-mixed", "cpu"))


class CountsWithAGradient(HoldsAnIterator):
    """A gradient is there before the first step."""

    def on_train_start(self):
        for parameter in self.parameters():
            parameter.grad = torch.ones_like(parameter)

    def optimizer_zero_grad(self, *args):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


NOT_READ = {
    CountsWithAGradient: "holds an iterator (itertools.count)",
    HoldsAnIterator: "holds an iterator (itertools.count)",
    StepsAnOptimizerOfItsOwn: "holds an optimizer of its own (torch.optim.adam.Adam)",
    FeelsForItsBatch: "it calls backward() itself",
    TakesAnIterator: "takes its batches from an iterator",
}


@pytest.mark.filterwarnings("ignore:.*`dataloader_iter`")
@pytest.mark.parametrize("kind", NOT_READ)
def test_a_step_that_cannot_be_read_leaves_no_trace_and_one_line(kind, caplog):
    assert_no_trace(kind, caplog, why=NOT_READ[kind])


class Counted:
    count = 0


class CallbackWithACount(Counted, Callback):
    pass


class DataWithACount(Counted, LightningDataModule):
    def train_dataloader(self):
        return DataLoader(CountedSet(), batch_size=8)

    def val_dataloader(self):
        return []


class CountedSet(Counted, Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((4,), float(index))


class CountsElsewhere(Plain):
    def loss_of(self, batch):
        [callback] = [one for one in self.trainer.callbacks if isinstance(one, CallbackWithACount)]
        callback.count += 1
        self.trainer.datamodule.count += 1
        self.trainer.train_dataloader.dataset.count += 1
        return super().loss_of(batch) * (callback.count + self.trainer.datamodule.count)


@pytest.mark.filterwarnings("ignore:.*num_workers|.*No `validation|.*logging interval")
def test_what_a_step_changes_through_its_trainer_is_put_back(caplog):
    def counts(*callbacks):
        run = trainer(None, callback := CallbackWithACount(), *callbacks)
        run.fit(model := CountsElsewhere(), datamodule=(data := DataWithACount()))
        return callback.count, data.count, run.train_dataloader.dataset.count, [float(loss) for loss in model.losses]

    def seeded(*callbacks):
        torch.manual_seed(0)
        return counts(*callbacks)

    bare = seeded()
    assert bare[:3] == (3, 3, 3)
    assert seeded(HealthMonitor()) == bare
    assert not said_by_reading(caplog)


def test_the_graph_of_the_reading_is_gone_when_the_step_begins():
    class Watches(Plain):
        def loss_of(self, batch):
            output = self.net(batch)
            sys.outputs.append(weakref.ref(output))
            alive.append(sum(ref() is not None for ref in sys.outputs))
            return mse_loss(output, batch)

    sys.outputs, alive = [], []  # not an attribute of anything of the model, which would be put back
    gc.disable()
    try:
        trained(Watches, data(), HealthMonitor())
    finally:
        gc.enable()
        made = len(sys.outputs)
        del sys.outputs
    assert made == 5
    assert alive == [1, 1, 1, 1]


class Speaks(Plain):
    def loss_of(self, batch):
        print("a step")
        print("a step", file=sys.stderr)
        logging.getLogger("of the user").warning("a step")
        return super().loss_of(batch)


def test_what_a_step_prints_and_logs_comes_once(caplog, capsys):
    trained(Speaks, data(), HealthMonitor())
    assert [given.count("a step\n") for given in capsys.readouterr()] == [4, 4]
    assert [record.name for record in caplog.records if record.message == "a step"] == ["of the user"] * 4
    assert not said_by_reading(caplog)


def note(path):
    """A helper that the step calls."""
    try:
        with path.open("a") as file:
            file.write("a step\n")
    except Exception:
        pass


class WritesByAHelper(Plain):
    path = None

    def loss_of(self, batch):
        note(self.path)
        return super().loss_of(batch)


def test_a_step_that_writes_to_a_file_is_not_read_and_writes_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(WritesByAHelper, "path", tmp_path / "notes")
    assert_no_trace(WritesByAHelper, caplog, why="it opens a file to write")
    assert WritesByAHelper.path.read_text() == 2 * 4 * "a step\n"


class CallsATracker(Plain):
    def training_step(self, batch, batch_idx):
        import wandb

        wandb.log({"step": batch_idx})
        return super().training_step(batch, batch_idx)


def test_a_step_that_calls_a_tracker_itself_is_not_read(caplog, monkeypatch):
    tracker, logged = types.ModuleType("wandb"), []

    def log(values):
        logged.append(values["step"])

    tracker.log = log
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    assert_no_trace(CallsATracker, caplog, why="it calls wandb.log")
    assert logged == [*range(4)] * 2
