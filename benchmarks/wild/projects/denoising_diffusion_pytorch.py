"""denoising-diffusion-pytorch: its README, in 2D and 1D, with the optimizer of its Trainer; on digits and waves."""

import torch
from benchmarks.recipes import data
from denoising_diffusion_pytorch import GaussianDiffusion, GaussianDiffusion1D, Unet, Unet1D

FAULT = ("rate", "lr=0.8 instead of 8e-4 in 2D")
VARIANTS = ("2D", "1D")


def train(run):
    if run.variant == "2D":
        unet = Unet(dim=16, dim_mults=(1, 2), flash_attn=False, channels=1)
        model, rows = GaussianDiffusion(unet, image_size=16, timesteps=100), data.digits(16)[0] / 2 + 0.5
    else:
        unet = Unet1D(dim=16, dim_mults=(1, 2), channels=1)
        model = GaussianDiffusion1D(unet, seq_length=32, timesteps=100, objective="pred_v")
        waves = torch.sin(torch.arange(32) / (2 + 3 * torch.rand(1500, 1)) + 6.283 * torch.rand(1500, 1))
        rows = waves[:, None] / 2 + 0.5
    optimizer = torch.optim.Adam(model.parameters(), lr=0.8 if run.faulty else 8e-4, betas=(0.9, 0.99))
    batches = [torch.randint(1500, (8,)) for _ in range(100)]
    run.descend(model, optimizer, (rows[batch] for batch in batches), model, clip=1.0)
