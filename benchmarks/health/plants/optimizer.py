"""Faults of the optimizer: the rate, what it holds, and what is done to gradients."""

from typing import Any

import torch
from benchmarks.health.plants.registry import WHOLE, WHOLE_BACKWARD, Where, plant
from benchmarks.health.training import Setup, Task, cross_entropy, scale_rate
from torch import Tensor


@plant("cnn_bn resnet lstm", "update_too_large")
def rate_large(s: Setup) -> Where:
    """The learning rate is 1,000 times too large."""
    s.options["lr"] *= 1000
    return WHOLE


@plant("tanh vgg vit mixer deep", "update_too_large")
def rate_rather_large(s: Setup) -> Where:
    """The learning rate is 50 times too large."""
    s.options["lr"] *= 50
    return WHOLE


@plant("mlp vit mixer", "update_too_small")
def rate_small(s: Setup) -> Where:
    """The learning rate is 100,000 times too small."""
    s.options["lr"] *= 1e-5
    return WHOLE


@plant("cnn vgg deep", "update_too_small")
def rate_rather_small(s: Setup) -> Where:
    """The learning rate is 1,000 times too small."""
    s.options["lr"] *= 1e-3
    return WHOLE


@plant("resnet vit mixer", "update_too_large", onset=100)
def rate_jumps(s: Setup) -> Where:
    """The learning rate is 50 times larger from step 100 on."""
    s.on_step[100] = lambda task: scale_rate(task, 50.0)
    return WHOLE


@plant("mlp lstm", "not_updated", by_itself=True)
def rate_zero(s: Setup) -> Where:
    """One layer has a group of its own, with a rate of 0."""
    name = _one_layer(s)
    s.rates[name] = 0.0
    return name


@plant("resnet vgg deep", "not_updated", by_itself=True)
def left_out(s: Setup) -> Where:
    """One layer is in no optimizer."""
    name = _one_layer(s)
    s.left_out.append(f"{name}.")
    return name


@plant("mlp cnn", "not_updated", by_itself=True)
def optimizer_of_a_copy(s: Setup) -> Where:
    """The optimizer holds the parameters of another instance of the model."""

    class OfCopy(s.optimizer):  # type: ignore[name-defined,misc]  # the class is a value
        def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
            copies = [{**g, "params": [_copy(p) for p in g["params"]]} for g in groups]
            super().__init__(copies, **options)

    s.optimizer = OfCopy
    return WHOLE


@plant("vgg", "not_updated no_gradient", by_itself=True)
def frozen(s: Setup) -> Where:
    """One random layer in the middle is frozen by mistake. An expected miss: it looks like a deliberate one."""
    for parameter in s.layer(s.middle).parameters():
        parameter.requires_grad_(False)
    return s.middle


@plant("tanh cnn deep", "exploding_gradient update_too_large", onset=(0, 30))
def zero_grad_forgotten(s: Setup) -> Where:
    """Gradients of all steps add up."""

    class Forgetful(Task):
        def optimizer_zero_grad(self, *args: Any) -> None:
            pass

    s.task = Forgetful
    return WHOLE_BACKWARD


@plant("vit mixer", "update_too_small")
def epsilon_large(s: Setup) -> Where:
    """Adam's epsilon is 1 in place of 1e-8."""
    s.options["eps"] = 1.0
    return WHOLE


@plant("lstm", "update_too_large spike")
def beta_small(s: Setup) -> Where:
    """Adam's second moment forgets at once: beta2 is 0.5."""
    s.options["betas"] = (0.9, 0.5)
    return WHOLE


@plant("cnn resnet", "update_too_small not_updated")
def clipped(s: Setup) -> Where:
    """Gradients are clipped at a norm of 0.0001, which SGD then steps with."""
    s.trainer["gradient_clip_val"] = 1e-4
    return WHOLE


@plant("mlp vit mixer", "activation_scale vanishing_gradient update_too_large collapsed", onset=(0, 100))
def decay_large(s: Setup) -> Where:
    """The weight decay takes 5 % of every weight in every step."""
    s.options["weight_decay"] = 0.05 / s.options["lr"]
    return WHOLE_BACKWARD


@plant("cnn", "update_too_large", onset=(0, 60))
def momentum_large(s: Setup) -> Where:
    """A momentum of 0.999."""
    s.options["momentum"] = 0.999
    return WHOLE


@plant("mlp resnet", "exploding_gradient activation_scale not_learning", onset=(0, 60))
def sign_turned(s: Setup) -> Where:
    """The loss is maximized."""
    s.loss = lambda logits, targets: -cross_entropy(logits, targets)
    return WHOLE_BACKWARD


@plant("vgg deep", "update_too_large spike", onset=120)
def warm_restart(s: Setup) -> Where:
    """A restart of the schedule at step 120 begins at 30 times the rate."""
    s.on_step[120] = lambda task: scale_rate(task, 30.0)
    s.on_step[135] = lambda task: scale_rate(task, 1 / 30.0)
    return WHOLE


def _one_layer(s: Setup) -> str:
    """A layer in the middle that other layers do not stand in for."""
    return {"lstm": "head", "resnet": "block2.conv1"}.get(s.base, s.middle)


def _copy(parameter: Tensor) -> Tensor:
    copy = torch.nn.Parameter(parameter.detach().clone())
    copy.grad = torch.zeros_like(copy)
    return copy
