"""Weights of trained models, for what is fine-tuned: made once, in a plain loop, and kept."""

import os
from pathlib import Path

import torch
from benchmarks.health.training import Setup, cross_entropy

FOLDER = Path(__file__).parents[1] / "cache"


def load_trained(setup: Setup, steps: int = 200) -> None:
    """Give the net the weights of a trained one of the same architecture, the same for every seed."""
    path = FOLDER / f"trained-{setup.base}.pt"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        with torch.random.fork_rng():
            torch.manual_seed(1000)
            _train(setup, steps)
        part = path.with_suffix(f".{os.getpid()}")
        torch.save(setup.net.state_dict(), part)
        part.replace(path)
    setup.net.load_state_dict(torch.load(path))


def _train(setup: Setup, steps: int) -> None:
    for module in setup.net.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
    optimizer = torch.optim.AdamW(setup.net.parameters(), 3e-3)
    for _ in range(steps):
        picked = torch.randint(len(setup.data.inputs), (32,))
        optimizer.zero_grad()
        cross_entropy(setup.net(setup.data.inputs[picked]), setup.data.targets[picked]).backward()
        optimizer.step()
