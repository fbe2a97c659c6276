"""chemprop: its training tutorials: an MPNN of logP with normalized targets, and one of a class, by its schedule."""

import itertools
import random

import numpy as np
from benchmarks.wild.made import QUIET
from chemprop import data, models, nn
from lightning import pytorch as pl
from rdkit import Chem, RDLogger
from rdkit.Chem import Descriptors

FAULT = ("targets", "logP times 1e6, not normalized")
VARIANTS = ("regression", "classification")
HEADS = ["C", "CC", "CCC", "O", "OC", "F", "Cl", "Br", "C(=O)O", "C#N", "C(F)(F)F", "NC"]
CORES = ["c1ccc(X)cc1Y", "c1ccnc(X)c1Y", "C1CCC(X)CC1Y", "c1cc(X)sc1Y", "c1ccc2c(X)cccc2c1Y", "C(X)CCCY"]


def molecules():
    RDLogger.DisableLog("rdApp.*")
    made = [core.replace("X", x).replace("Y", y) for core, x, y in itertools.product(CORES, HEADS, HEADS)]
    random.Random(0).shuffle(made)
    return [one for one in made if Chem.MolFromSmiles(one)][:400]


def train(run):
    of, smiles = Descriptors.MolLogP if run.variant == "regression" else Descriptors.TPSA, molecules()
    y = np.array([[of(Chem.MolFromSmiles(one))] for one in smiles]) * (1e6 if run.faulty else 1)
    y = y if run.variant == "regression" else (y > 25).astype(float)
    points = [data.MoleculeDatapoint.from_smi(one, value) for one, value in zip(smiles, y, strict=True)]
    training, validation = data.MoleculeDataset(points[:320]), data.MoleculeDataset(points[320:])
    ffn = nn.BinaryClassificationFFN(input_dim=100) if run.variant != "regression" else nn.RegressionFFN(input_dim=100)
    if run.variant == "regression" and not run.faulty:
        scaler = training.normalize_targets()
        validation.normalize_targets(scaler)
        ffn = nn.RegressionFFN(input_dim=100, output_transform=nn.UnscaleTransform.from_standard_scaler(scaler))
    model = models.MPNN(nn.BondMessagePassing(d_h=100), nn.MeanAggregation(), ffn, batch_norm=True)
    loaders = [data.build_dataloader(rows, num_workers=0, shuffle=rows is training) for rows in (training, validation)]
    pl.Trainer(max_epochs=20, callbacks=run.callbacks, **QUIET).fit(model, *loaders)
