"""Healthy trainings with batch norm whose running statistics lag, and validations that are unlike the training data."""

import torch
from benchmarks.health import nets
from benchmarks.health.controls.models import zero_residuals
from benchmarks.health.controls.registry import control
from benchmarks.health.training import Setup
from torch import nn


@control("narrow")
def zero_residuals_fast(s: Setup) -> None:
    """Residual branches that begin at 0, at four times the usual rate."""
    zero_residuals(s)
    s.options["lr"] *= 4


@control("narrow")
def zero_residuals_adam(s: Setup) -> None:
    """The same under Adam at a high rate."""
    zero_residuals(s)
    s.optimizer, s.options = torch.optim.AdamW, {"lr": 2e-2}


@control("narrow")
def zero_residuals_wide(s: Setup) -> None:
    """The same in a wider net."""
    s.net = nets.resnet((24, 24, 24, 32))
    zero_residuals(s)


@control("narrow cnn_bn")
def norms_slow(s: Setup) -> None:
    """Running statistics that follow three times as slowly as usual, at twice the rate."""
    for module in s.net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.03
    s.options["lr"] *= 2


@control("narrow cnn_bn")
def batches_of_two(s: Setup) -> None:
    """Two samples in a batch: the loss is as noisy as what there is to learn."""
    s.batch_size, s.steps = 2, 400
    s.options["lr"] *= 0.2


@control("narrow cnn_bn mixer")
def validation_small(s: Setup) -> None:
    """Three samples for validation."""
    s.data.held_out_inputs, s.data.held_out_targets = s.data.held_out_inputs[:3], s.data.held_out_targets[:3]


@control("narrow cnn_bn mlp")
def validation_of_one_class(s: Setup) -> None:
    """Validation holds one class alone."""
    is_one = s.data.held_out_targets == 0
    s.data.held_out_inputs, s.data.held_out_targets = s.data.held_out_inputs[is_one], s.data.held_out_targets[is_one]


@control("narrow cnn_bn")
def validation_unbalanced(s: Setup) -> None:
    """Training knows two classes in equal shares, validation one of them nearly alone."""
    data, held_out = s.data, s.data.held_out_targets
    is_kept = data.targets < 2
    data.inputs, data.targets = data.inputs[is_kept], data.targets[is_kept]
    is_kept = (held_out == 0) | ((held_out == 1) & (torch.arange(len(held_out)) % 10 == 0))
    data.held_out_inputs, data.held_out_targets = data.held_out_inputs[is_kept], held_out[is_kept]
