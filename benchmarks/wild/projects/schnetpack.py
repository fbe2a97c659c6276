"""SchNetPack: its tutorial of forces, SchNet and PaiNN: weights 0.01 and 0.99, AdamW 1e-3 (5e-4 there), made ethane."""

import numpy as np
import pytorch_lightning as pl
import torch
from ase.build import molecule
from ase.calculators.emt import EMT
from benchmarks.wild.made import QUIET
from torch.utils.data import dataloader

FAULT = ("rate", "lr=1 instead of 1e-3 in PaiNN")
VARIANTS = ("PaiNN", "SchNet")
UNITS = {"energy": "eV", "forces": "eV/Ang"}


def train(run):
    dataloader.T_co = None  # schnetpack imports this name, which torch no longer has
    import schnetpack as spk
    import schnetpack.transform as trn

    drawn, atoms, labels = np.random.default_rng(0), [molecule("C2H6") for _ in range(200)], []
    for each in atoms:
        each.positions += drawn.normal(0, 0.08, each.positions.shape)
        each.calc = EMT()
        labels.append({"energy": np.array([each.get_potential_energy()]), "forces": each.get_forces()})
    spk.data.ASEAtomsData.create("e.db", distance_unit="Ang", property_unit_dict=UNITS).add_systems(labels, atoms)
    offsets = {"remove_mean": True, "remove_atomrefs": False}
    transforms = [trn.ASENeighborList(cutoff=5.0), trn.RemoveOffsets("energy", **offsets), trn.CastTo32()]
    sizes = {"batch_size": 10, "num_train": 160, "num_val": 40, "num_workers": 0, "pin_memory": False}
    rows = spk.data.AtomsDataModule("e.db", distance_unit="Ang", property_units=UNITS, transforms=transforms, **sizes)
    basis = {"radial_basis": spk.nn.GaussianRBF(20, 5.0), "cutoff_fn": spk.nn.CosineCutoff(5.0)}
    body = getattr(spk.representation, run.variant)(n_atom_basis=32, n_interactions=2, **basis)
    heads = [spk.atomistic.Atomwise(n_in=32, output_key="energy"), spk.atomistic.Forces()]
    after = [trn.CastTo64(), trn.AddOffsets("energy", add_mean=True, add_atomrefs=False)]
    model = spk.model.NeuralNetworkPotential(body, [spk.atomistic.PairwiseDistances()], heads, after)
    parts = (("energy", 0.01), ("forces", 0.99))
    options = {"loss_fn": torch.nn.MSELoss(), "metrics": {}}
    outputs = [spk.task.ModelOutput(name, loss_weight=weight, **options) for name, weight in parts]
    rate = {"lr": 1.0 if run.faulty else 1e-3}
    task = spk.task.AtomisticTask(model, outputs, optimizer_cls=torch.optim.AdamW, optimizer_args=rate)
    pl.Trainer(max_epochs=6, inference_mode=False, callbacks=run.callbacks, **QUIET).fit(task, datamodule=rows)
