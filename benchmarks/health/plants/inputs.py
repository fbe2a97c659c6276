"""Faults of data, modes and single batches."""

from collections.abc import Callable

import torch
from benchmarks.health.data import by_class
from benchmarks.health.plants.registry import WHOLE, WHOLE_BACKWARD, Where, plant
from benchmarks.health.training import Batch, Setup, Task
from torch import Tensor, nn


@plant("tanh vgg deep", "input_scale")
def inputs_large(s: Setup) -> Where:
    """Pixels from 0 to 4080 where the model was made for standardized ones."""
    _change_inputs(s, lambda x: (x + 1) * 255)
    return WHOLE, *s.entrance


@plant("cnn vgg deep", "input_scale")
def inputs_small(s: Setup) -> Where:
    """Inputs normalized twice: they are 1,000 times too small."""
    _change_inputs(s, lambda x: x * 1e-3)
    return WHOLE, *s.entrance


@plant("mlp tanh", "input_scale")
def inputs_wild(s: Setup) -> Where:
    """One column of the pictures is 1,000 times as large as the others."""
    _change_inputs(s, lambda x: torch.cat([x[..., :3], x[..., 3:4] * 1000, x[..., 4:]], -1))
    return WHOLE, *s.entrance


@plant("cnn", "input_scale")
def inputs_offset(s: Setup) -> Where:
    """All pixels have 1,000 added."""
    _change_inputs(s, lambda x: x + 1000)
    return WHOLE, *s.entrance


@plant("vit mixer", "input_scale collapsed not_learning", by_itself=True)
def inputs_zero(s: Setup) -> Where:
    """The loader gives zeros."""
    _change_inputs(s, torch.zeros_like)
    return WHOLE, *s.entrance


@plant("resnet vit lstm mixer deep", "not_learning")
def labels_shuffled(s: Setup) -> Where:
    """The targets of each batch belong to other samples."""
    shuffled = torch.Generator().manual_seed(0)

    def shuffle(step: int, batch: Batch) -> Batch:
        targets = batch[1].flatten()
        return batch[0], targets[torch.randperm(len(targets), generator=shuffled)].view_as(batch[1])

    s.on_batch.append(shuffle)
    return WHOLE


@plant("cnn_bn resnet", "train_eval_gap", onset=(0, 50))
def norm_momentum(s: Setup) -> Where:
    """The norms keep the statistics of the last batch alone, which holds a single class."""
    for module in s.net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    by_class(s.data, s.batch_size)
    s.shuffle = False
    return WHOLE, *_norms(s)


@plant("resnet", "train_eval_gap activation_scale")
def norm_evaluates(s: Setup) -> Where:
    """The norms are in evaluation mode while training."""

    class Evaluating(Task):
        def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()

    s.task = Evaluating
    return WHOLE, *_norms(s)


@plant("cnn_bn resnet", "train_eval_gap", onset=(0, 50))
def norm_statistics_lost(s: Setup) -> Where:
    """The running statistics of the norms are never updated, and are used in validation."""
    for module in s.net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    return WHOLE, *_norms(s)


@plant("cnn vit mixer", "train_eval_gap input_scale", onset=(0, 50))
def validation_differs(s: Setup) -> Where:
    """Validation is normalized by other statistics than training."""
    s.data.held_out_inputs = s.data.held_out_inputs * 6 + 10
    return WHOLE, *s.entrance


@plant("cnn", "activation_scale train_eval_gap exploding_gradient")
def dropout_large(s: Setup) -> Where:
    """A dropout of 0.95 behind each activation."""
    names = [s.behind(name) for name in s.layers[:-1]]
    for name in names:
        s.net._modules[name] = nn.Sequential(s.layer(name), nn.Dropout(0.95))  # noqa: SLF001  # keeps the order
    return [WHOLE, *(f"{name}.1" for name in names)]


@plant("mlp cnn", "saturated vanishing_gradient")
def softmax_twice(s: Setup) -> Where:
    """A softmax behind the head, before a loss that takes one itself."""
    s.net.add_module("softmax", nn.Softmax(-1))
    return "softmax", "head"


@plant("resnet vgg deep", "spike input_scale", onset=80)
def batch_poisoned(s: Setup) -> Where:
    """The inputs of one batch are 10,000 times too large."""
    s.on_batch.append(lambda step, batch: (batch[0] * 1e4, batch[1]) if step == 80 else batch)
    return WHOLE, *s.entrance


@plant("cnn resnet", "spike exploding_gradient update_too_large", onset=80)
def loss_poisoned(s: Setup) -> Where:
    """The loss of one batch is a million times too large; nothing clips it, and SGD takes it as it is."""
    loss, steps = s.loss, {"now": 0}

    def count(step: int, batch: Batch) -> Batch:
        steps["now"] = step
        return batch

    s.on_batch.append(count)
    s.loss = lambda logits, targets: loss(logits, targets) * (1e6 if steps["now"] == 80 else 1.0)
    return WHOLE_BACKWARD


@plant("prenorm", "train_eval_gap", onset=(0, 50))
def dropout_in_validation(s: Setup) -> Where:
    """A dropout of 0.8 in every block, on in validation and off in training: the modes are turned."""

    class Turned(Task):
        def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
            self.net.eval()

        def on_validation_start(self) -> None:
            self.net.train()

    s.task = Turned
    names = [f"block{i}.act" for i in range(4)]
    for name in names:
        s.layer(name.split(".")[0]).act = nn.Sequential(nn.GELU(), nn.Dropout(0.8))
    return [WHOLE, *(f"{name}.1" for name in names)]


def _change_inputs(s: Setup, change: Callable[[Tensor], Tensor]) -> None:
    s.data.inputs, s.data.held_out_inputs = change(s.data.inputs), change(s.data.held_out_inputs)


def _norms(s: Setup) -> list[str]:
    return [name for name, module in s.net.named_modules() if isinstance(module, nn.BatchNorm2d)]
