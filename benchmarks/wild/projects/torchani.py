"""torchani: its example of training an ANI potential: a network for each element, the loss by atoms: AdamW 1e-3."""

import torch
from torchani.arch import simple_ani

FAULT = ("rate", "lr=1 instead of 1e-3")


def molecules(count=240, atoms=6):
    """Places of hydrogen, carbon and oxygen, some of them padding (-1), with made energies."""
    species, grid = torch.randint(0, 3, (count, atoms)), torch.cartesian_prod(*[torch.arange(2.0)] * 3)
    places = torch.stack([grid[torch.randperm(8)[:atoms]] for _ in range(count)]) * 1.3
    places = places + 0.15 * torch.randn(count, atoms, 3)
    species[::3, -1] = -1
    apart = torch.cdist(places, places) + 10 * torch.eye(atoms)
    depth = (species + 1.0)[:, :, None] * (species + 1.0)[:, None]  # 0 for padding
    return species, places, (0.02 * depth * ((1.2 / apart) ** 6 - 2 * (1.2 / apart) ** 3)).sum((1, 2))


def train(run):
    species, places, energies = molecules()
    model = simple_ani(("H", "C", "O"), lot="wb97x-631gd", periodic_table_index=False, repulsion=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0 if run.faulty else 1e-3, weight_decay=1e-6)
    energies = energies - energies.mean()

    def loss_of(species, places, energies):
        predicted = model((species, places)).energies - model.energy_shifter(species)
        return ((predicted - energies).square() / (species >= 0).sum(1).sqrt()).mean()

    batches = (rows for _ in range(8) for rows in torch.randperm(len(species)).split(16))
    run.descend(model, optimizer, ((species[rows], places[rows], energies[rows]) for rows in batches), loss_of)
