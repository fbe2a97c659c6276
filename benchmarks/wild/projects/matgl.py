"""matgl: its tutorial of a MEGNet of formation energies (Adam 1e-3), on made crystals of two atoms."""

import lightning.pytorch as pl
import matgl.graph.data as graphs
import numpy as np
from benchmarks.wild.made import QUIET
from matgl.ext.pymatgen import Structure2Graph, get_element_list
from matgl.layers import BondExpansion
from matgl.models import MEGNet
from matgl.utils.training import ModelLightningModule
from pymatgen.core import Lattice, Structure

FAULT = ("rate", "lr=1 instead of 1e-3")
PAIRS = {("Na", "Cl"): 0.0, ("Mg", "O"): -1.0, ("Cs", "Cl"): 0.5, ("Li", "F"): -0.4}
SIZES = {
    "dim_node_embedding": 16,
    "dim_edge_embedding": 40,
    "dim_state_embedding": 2,
    "nblocks": 2,
    "hidden_layer_sizes_input": (64, 32),
    "hidden_layer_sizes_conv": (64, 64, 32),
    "nlayers_set2set": 1,
    "niters_set2set": 2,
    "hidden_layer_sizes_output": (32, 16),
    "cutoff": 4.0,
    "gauss_width": 0.5,
}


def train(run):
    drawn, crystals, energies = np.random.default_rng(0), [], []
    for _ in range(160):
        side, pair = 3.6 + drawn.random(), list(PAIRS)[drawn.integers(4)]
        crystals.append(Structure(Lattice.cubic(side), pair, [[0, 0, 0], [0.5, 0.5, 0.5]]))
        energies.append(-4 / side + PAIRS[pair])
    elements = get_element_list(crystals)
    converter = Structure2Graph(element_types=elements, cutoff=4.0)
    rows = graphs.MGLDataset(structures=crystals, converter=converter, labels={"eform": energies}, save_cache=False)
    parts = dict(zip(("train_data", "val_data"), graphs.split_dataset(rows, [0.8, 0.1, 0.1], True, 42), strict=False))
    loaders = graphs.MGLDataLoader(**parts, collate_fn=graphs.collate_fn_graph, batch_size=8, num_workers=0)
    bonds = BondExpansion(rbf_type="Gaussian", initial=0.0, final=5.0, num_centers=40, width=0.5)
    options = {"is_classification": False, "activation_type": "softplus2", "bond_expansion": bonds, **SIZES}
    model = ModelLightningModule(model=MEGNet(element_types=elements, **options), lr=1.0 if run.faulty else 1e-3)
    pl.Trainer(max_epochs=8, callbacks=run.callbacks, **QUIET).fit(model, *loaders[:2])
