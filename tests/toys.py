"""Tiny things to train, a Trainer that says nothing, and what can be read back of a run."""

import io
import os
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hookboard
from hookboard import Finding, Rule, Run, for_transformers
from hookboard.loops.callback import HookboardCallback

PUBLIC = [(name, getattr(hookboard, name)) for name in hookboard.__all__]
CALLBACKS = [name for name, each in PUBLIC if isinstance(each, type) and issubclass(each, Callback)]
"""The names of all public callbacks."""

IS_OLD_TORCH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9)
newer_torch = pytest.mark.skipif(IS_OLD_TORCH, reason="torch before 2.9 fails to compile some models with hooks")

EVERYTHING = {"scalars": 0, "histograms": 0, "images": 0, "tensors": 0}


def mean_square(y: Tensor) -> Tensor:
    return y.square().mean()


class Toy(LightningModule):
    """Trains any network on batches of inputs by the mean square of its output or another loss, and logs that loss."""

    def __init__(self, net: nn.Module, loss: Callable[[Tensor], Tensor] | None = None):
        super().__init__()
        self.net = net
        self.loss = loss or mean_square

    def training_step(self, batch: Tensor) -> Tensor:
        loss = self.loss(self.net(batch))
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Tensor) -> None:
        self.net(batch)

    test_step = validation_step

    def predict_step(self, batch: Tensor) -> Tensor:
        return self.net(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class RecordsLoss(Toy):
    """Keeps the loss of every training batch."""

    def __init__(self, net: nn.Module):
        super().__init__(net)
        self.losses: list[Tensor] = []

    def training_step(self, batch: Tensor) -> Tensor:
        loss = super().training_step(batch)
        self.losses.append(loss.detach().clone())
        return loss


def always(run: Run) -> Iterator[Finding]:
    yield Finding("net.0", "it is there", "leave it", severity="alarm")


ALWAYS = Rule("always", always)
"""A rule that gives an alarm at each look."""


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


def batches(*sizes: int, width: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, width, generator=generator) for size in sizes]


def encoder(norm_first: bool = False, dropout: float = 0.0) -> nn.TransformerEncoder:
    """Two layers, each of which torch runs as one operation in evaluation."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def sequences(*sizes: int) -> list[Tensor]:
    """Batches for `encoder`, of shape (size, 5, 8)."""
    return [batch.reshape(-1, 5, 8) for batch in batches(*sizes, width=40)]


def trainer(folder: Path | None, *watching: Callback, **options: Any) -> Trainer:
    return Trainer(
        **{
            "accelerator": os.environ.get("HOOKBOARD_ACCELERATOR", "cpu"),
            "max_epochs": 1,
            "log_every_n_steps": 1,
            "logger": TensorBoardLogger(folder, name=None, version="") if folder else False,
            "limit_val_batches": 0,
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "enable_progress_bar": False,
            "callbacks": list(watching),
            **options,
        }
    )


def loader(data: Sequence[Tensor]) -> DataLoader[Tensor]:
    return DataLoader(data, batch_size=None)


def fit(
    folder: Path | None, model: LightningModule, data: Sequence[Tensor], *watching: Callback, **options: Any
) -> Trainer:
    run = trainer(folder, *watching, **options)
    run.fit(model, loader(data), loader(data))
    return run


def fit_in_transformers(
    folder: Path,
    model: nn.Module,
    data: Sequence[Tensor] | Sequence[dict[str, Tensor]],
    watching: HookboardCallback[Any],
    **options: Any,
) -> None:
    """Train a model that returns {"loss": ...} for a batch with Hugging Face's Trainer, in the order of `data`.

    A batch is what the model is called with by name, or its argument `x`.
    """
    batches = [batch if isinstance(batch, dict) else {"x": batch} for batch in data]
    counts = [len(next(iter(batch.values()))) for batch in batches]
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    usual = {
        "per_device_train_batch_size": counts[0],
        "num_train_epochs": 1,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    arguments = transformers.TrainingArguments(output_dir=str(folder), **usual | options)
    rows = [
        {name: batch[name][row] for name in batch}
        for batch, count in zip(batches, counts, strict=True)
        for row in range(count)
    ]
    transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[for_transformers(watching)]).train()


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance=EVERYTHING)
    accumulator.Reload()
    return accumulator


def records(folder: Path) -> Iterator[Event]:
    """Every event of the run, as it stands in the file."""
    (path,) = folder.glob("events.*")
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[length + 16 :]


def pixels(event: Any) -> np.ndarray:
    """The RGB pixels of a picture in an event file."""
    return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)).convert("RGB"))


def images(folder: Path) -> dict[str, dict[int, np.ndarray]]:
    """Tag to step to RGB pixels."""
    found = events(folder)
    return {tag: {event.step: pixels(event) for event in found.Images(tag)} for tag in found.Tags()["images"]}


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Tag to step to value."""
    found = events(folder)
    return {tag: {e.step: e.value for e in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def moving_average(decay: float) -> Callback:
    """Lightning's moving average of the weights; where Lightning is too old to have it, the test is skipped."""
    if not hasattr(callbacks, "EMAWeightAveraging"):
        pytest.skip("EMAWeightAveraging came with lightning 2.6")
    return callbacks.EMAWeightAveraging(decay=decay)


def hooked(model: nn.Module) -> list[str]:
    """The modules that hold any hook."""
    return [
        name
        for name, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    ]


class Raw(Callback):
    """The raw tensors of every optimizer step, by plain hooks of its own: what the oracle computes from."""

    def __init__(self) -> None:
        self.steps: list[dict[tuple[str, str], list[Tensor]]] = [defaultdict(list)]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        def keep(name: str) -> Callable[..., None]:
            def before(module: nn.Module, args: tuple[Tensor, ...]) -> None:
                self.steps[-1]["input", name].append(args[0].detach().clone())

            def after(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
                self.steps[-1]["output", name].append(output.detach().clone())
                if output.requires_grad:
                    output.register_hook(lambda grad: self.steps[-1]["grad_output", name].append(grad.clone()))

            return before, after

        self.handles = []
        for name, module in pl_module.named_modules():
            if name and not list(module.children()):
                before, after = keep(name)
                self.handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        for name, parameter in pl_module.named_parameters():
            self.steps[-1]["parameter_grad", name].append(parameter.grad.clone())

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if not trainer.fit_loop._should_accumulate():
            self.steps.append(defaultdict(list))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for handle in self.handles:
            handle.remove()


class EachStep(Callback):
    """Keeps what a callback read at every step; must stand behind it in the list."""

    def __init__(self, watched: Any) -> None:
        self.watched = watched
        self.readings: list[tuple[Any, ...]] = []
        self.last: Any = watched.readings

    def on_train_batch_end(self, *args: Any) -> None:
        if self.watched.readings is not self.last:
            self.last = self.watched.readings
            self.readings.append(self.last)


def compiler_stance():
    return torch._dynamo.eval_frame._stance.stance
