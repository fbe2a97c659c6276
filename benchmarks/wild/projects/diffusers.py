"""diffusers: its tutorial basic_training, smaller, with digits: AdamW, warm-up and cosine, clipped to 1."""

import torch
from benchmarks.recipes import data
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.nn import functional as F  # noqa: N812  # the usual name

FAULT = ("rate", "lr=1 instead of 1e-3")
STEPS = 150


def train(run):
    images, _ = data.digits(16)
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    options = {"layers_per_block": 1, "block_out_channels": (16, 32), "norm_num_groups": 8, **blocks}
    model = UNet2DModel(sample_size=16, in_channels=1, out_channels=1, **options)
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0 if run.faulty else 1e-3)
    schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=15, num_training_steps=STEPS)
    with run.loop(model, optimizer) as steps:
        for _ in range(STEPS):
            clean = images[torch.randint(len(images), (16,))]
            noise, timesteps = torch.randn(clean.shape), torch.randint(0, 1000, (16,))
            noisy = scheduler.add_noise(clean, noise, timesteps)
            with steps.step(noisy):
                loss = F.mse_loss(model(noisy, timesteps, return_dict=False)[0], noise)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            run.loss(loss)
