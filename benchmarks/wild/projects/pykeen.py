"""pykeen: its first steps: TransE and ComplEx on the Nations that it ships, by the training loop sLCWA, Adam 0.01."""

from contextlib import ExitStack

import torch
from pykeen.datasets import Nations
from pykeen.models import ComplEx, TransE
from pykeen.training import SLCWATrainingLoop
from pykeen.training.callbacks import TrainingCallback

FAULT = ("rate", "lr=10 instead of 0.01 in TransE")
VARIANTS = ("TransE", "ComplEx")


class Watched(TrainingCallback):
    def __init__(self, run, steps):
        super().__init__()
        self.told, self.steps, self.step = run, steps, ExitStack()

    def pre_batch(self, **given):
        self.step.close()  # the optimizer steps after the other callbacks of a batch
        self.step.enter_context(self.steps.step())

    def post_train(self, losses, **given):
        self.step.close()

    def on_batch(self, epoch, batch, batch_loss, **given):
        self.told.loss(batch_loss)


def train(run):
    triples = Nations().training
    kind = {"TransE": TransE, "ComplEx": ComplEx}[run.variant]
    model = kind(triples_factory=triples, embedding_dim=32, random_seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=10.0 if run.faulty else 0.01)
    training = SLCWATrainingLoop(model=model, triples_factory=triples, optimizer=optimizer)
    with run.loop(model, optimizer) as steps:
        options = {"num_epochs": 30, "batch_size": 256, "use_tqdm": False, "callbacks": Watched(run, steps)}
        training.train(triples_factory=triples, **options)
