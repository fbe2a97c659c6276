"""timm: what its train.py makes, of MobileNetV3: create_optimizer_v2, Mixup, CosineLRScheduler, ModelEmaV3; digits."""

import timm
import torch
from benchmarks.recipes import data
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

FAULT = ("rate", "lr=2 instead of 2e-3")


def train(run):
    model = timm.create_model("mobilenetv3_small_050", num_classes=10, drop_rate=0.2)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=2.0 if run.faulty else 2e-3, weight_decay=0.05)
    schedule = CosineLRScheduler(optimizer, t_initial=120, warmup_t=15, warmup_lr_init=1e-5, t_in_epochs=False)
    mixed = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10)
    average, loss_of = ModelEmaV3(model, decay=0.99), SoftTargetCrossEntropy()
    images, labels = data.digits(32, channels=3)
    batches = [torch.randint(1500, (16,)) for _ in range(120)]
    with run.loop(model, optimizer) as steps:
        for i, rows in enumerate(batches):
            x, y = mixed(images[rows], labels[rows])
            with steps.step((x, y)):
                optimizer.zero_grad()
                loss = loss_of(model(x), y)
                loss.backward()
                optimizer.step()
            average.update(model)
            schedule.step_update(i + 1)
            run.loss(loss)
