"""open_clip: a small CLIP with its ClipLoss as its loop trains it: AdamW, betas 0.9 and 0.98; digits."""

import math

import torch
from benchmarks.recipes import data
from open_clip import CLIP, ClipLoss

FAULT = ("rate", "lr=0.5 instead of 5e-4")
VISION = {"image_size": 16, "patch_size": 4, "width": 64, "layers": 2, "head_width": 16}
TEXT = {"context_length": 8, "vocab_size": 32, "width": 64, "heads": 4, "layers": 2}


def train(run):
    images, labels = data.digits(16, 3)
    captions = torch.randint(12, 30, (len(images), 8))
    captions[:, 0], captions[:, -1] = 30, 31
    captions[torch.arange(len(images)), torch.randint(1, 7, labels.shape)] = labels + 1
    model, loss_of = CLIP(64, VISION, TEXT), ClipLoss()
    decayed = [weight for weight in model.parameters() if weight.ndim >= 2]
    rest = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": rest, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.2}]
    optimizer = torch.optim.AdamW(groups, lr=0.5 if run.faulty else 5e-4, betas=(0.9, 0.98), eps=1e-6)
    with run.loop(model, optimizer) as steps:
        for _ in range(200):
            rows = torch.randperm(len(images))[:32]
            with steps.step((images[rows], captions[rows])):
                optimizer.zero_grad()
                loss = loss_of(*model(images[rows], captions[rows]))
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))
            run.loss(loss)
