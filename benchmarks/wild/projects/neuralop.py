"""neuralop: an FNO as in its example of the Darcy flow, by its Trainer and H1 loss, on made flows: AdamW 1e-2, 1e-4."""

import torch
from benchmarks.wild.made import each_batch
from neuralop import H1Loss, Trainer
from neuralop.data.datasets.tensor_dataset import TensorDataset
from neuralop.models import FNO, TFNO

FAULT = ("rate", "lr=10 instead of 1e-2")
VARIANTS = ("FNO", "TFNO")


def flows(count=160, size=16):
    """Solutions of Poisson's equation for smooth sources."""
    k = torch.fft.fftfreq(size, 1 / size)
    square = k[:, None] ** 2 + k[None] ** 2
    source = torch.fft.fft2(torch.randn(count, 1, size, size)) * torch.exp(-square / 16)
    source[..., 0, 0] = 0
    flow = torch.fft.ifft2(source / square.clamp(min=1)).real
    source = torch.fft.ifft2(source).real
    return TensorDataset(source / source.std(), flow / flow.std())


def train(run):
    loader = torch.utils.data.DataLoader(flows(), batch_size=16, shuffle=True)
    sizes = {"n_modes": (8, 8), "in_channels": 1, "out_channels": 1, "hidden_channels": 16, "n_layers": 3}
    model = FNO(**sizes) if run.variant == "FNO" else TFNO(**sizes, factorization="tucker", rank=0.4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=10.0 if run.faulty else 1e-2, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    trainer = Trainer(model=model, n_epochs=12, device="cpu", verbose=False)
    with each_batch(run, lambda: (model, optimizer)):
        trainer.train(loader, {}, optimizer, schedule, training_loss=H1Loss(d=2), eval_losses={})
