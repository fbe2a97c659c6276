"""Healthy trainings with unusual optimizers, schedules and steps."""

import math

import torch
from benchmarks.health.controls.pretrained import load_trained
from benchmarks.health.controls.registry import control
from benchmarks.health.training import Batch, Setup, Task, cross_entropy
from torch import nn


@control("cnn")
def cosine_to_zero(s: Setup) -> None:
    """The rate goes to exactly 0 along a cosine."""
    s.schedule = lambda step: max(0.0, 0.5 * (1 + math.cos(math.pi * step / (s.steps - 10)))) if step < 190 else 0.0


@control("resnet")
def one_cycle(s: Setup) -> None:
    """The rate rises to five times the usual one and falls to almost 0."""
    s.schedule = lambda step: 0.2 + 4.8 * step / 60 if step < 60 else 5 * (s.steps - step) / (s.steps - 60) + 1e-3
    s.options["lr"] *= 0.5


@control("lstm")
def clipped_always(s: Setup) -> None:
    """Every step is clipped, to a tenth of the usual norm; Adam does not mind."""
    s.trainer["gradient_clip_val"] = 0.05


@control("vit mixer")
def rate_zero_at_first(s: Setup) -> None:
    """The rate is 0 in the first 20 steps, and rises in the next 20."""
    s.schedule = lambda step: min(1.0, max(0, step - 20) / 20)


@control("cnn")
def accumulated(s: Setup) -> None:
    """Every step takes four batches."""
    s.trainer["accumulate_grad_batches"] = 4
    s.steps, s.batch_size = 150, 8


@control("resnet")
def decayed(s: Setup) -> None:
    """A strong weight decay."""
    s.optimizer, s.options = torch.optim.AdamW, {"lr": 3e-3, "weight_decay": 1.0}


@control("lstm")
def rms_prop(s: Setup) -> None:
    """Another optimizer."""
    s.optimizer, s.options = torch.optim.RMSprop, {"lr": 1e-3}


@control("cnn_bn")
def plain_sgd(s: Setup) -> None:
    """No momentum."""
    s.optimizer, s.options = torch.optim.SGD, {"lr": 0.1}


@control("resnet vit mixer")
def tuned_further(s: Setup) -> None:
    """A trained model, trained on at a low rate: its loss no longer falls."""
    load_trained(s)
    s.optimizer, s.options = torch.optim.AdamW, {"lr": 1e-4}


@control("resnet")
def backbone_frozen(s: Setup) -> None:
    """A trained backbone is frozen; a new head is trained."""
    load_trained(s)
    for name, parameter in s.net.named_parameters():
        parameter.requires_grad_(name.startswith("head"))
    s.layer("head").reset_parameters()


@control("cnn_bn")
def norms_frozen(s: Setup) -> None:
    """A trained model is tuned further with its norms in evaluation mode, as for detection."""
    load_trained(s)
    s.optimizer, s.options = torch.optim.AdamW, {"lr": 3e-4}

    class NormsFrozen(Task):
        def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()

    s.task = NormsFrozen


@control("resnet")
def unfrozen_later(s: Setup) -> None:
    """The backbone of a trained model is frozen until step 100, and trained from then on."""
    load_trained(s)
    s.layer("head").reset_parameters()
    backbone = [parameter for name, parameter in s.net.named_parameters() if not name.startswith("head")]

    def train_backbone(on: bool) -> None:
        for parameter in backbone:
            parameter.requires_grad_(on)

    s.on_step[0] = lambda task: train_backbone(False)
    s.on_step[100] = lambda task: train_backbone(True)


@control("vit mixer")
def half_precision(s: Setup) -> None:
    """Mixed precision with bfloat16."""
    s.trainer["precision"] = "bf16-mixed"


@control("cnn_bn deep")
def labels_smoothed(s: Setup) -> None:
    """The loss cannot come near 0."""
    s.loss = lambda logits, targets: nn.functional.cross_entropy(logits, targets, label_smoothing=0.3)


@control("cnn")
def loss_of_sums(s: Setup) -> None:
    """The loss is a sum over the batch, with a rate to match."""
    s.loss = lambda logits, targets: cross_entropy(logits, targets) * 32
    s.options["lr"] /= 32
