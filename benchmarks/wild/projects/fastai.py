"""fastai: its tabular tutorial on the table breast_cancer: tabular_learner, fit_one_cycle, AdamW as opt_func."""

from contextlib import ExitStack
from functools import partial

import torch
from fastai.callback.core import Callback
from fastai.optimizer import OptimWrapper
from fastai.tabular.all import Categorify, FillMissing, Normalize, TabularDataLoaders, tabular_learner
from sklearn.datasets import load_breast_cancer

FAULT = ("rate", "lr_max=1 instead of fastai's 1e-3")


class Watched(Callback):
    def __init__(self, run):
        self.told, self.open, self.step = run, ExitStack(), ExitStack()

    def before_fit(self):
        self.steps = self.open.enter_context(self.told.loop(self.learn.model, self.learn.opt.opt, validates=True))

    def before_validate(self):
        self.evaluation = self.steps.evaluate()
        self.evaluation.__enter__()

    def after_validate(self):
        self.evaluation.__exit__(None, None, None)

    def before_batch(self):
        self.step.enter_context(self.steps.step((self.xb, self.yb)))

    def after_batch(self):
        self.step.close()
        if self.training:
            self.told.loss(self.learn.loss)

    def after_fit(self):
        self.open.close()


def train(run):
    table = load_breast_cancer(as_frame=True).frame
    numbers = [column for column in table.columns if column != "target"]
    options = {"cont_names": numbers, "y_names": "target", "bs": 32, "procs": [Categorify, FillMissing, Normalize]}
    rows = TabularDataLoaders.from_df(
        table.astype({"target": str}), cat_names=[], device=torch.device("cpu"), **options
    )
    adamw = partial(OptimWrapper, opt=torch.optim.AdamW)
    learner = tabular_learner(rows, layers=[64, 32], opt_func=adamw, cbs=[Watched(run)])
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(12, 1.0 if run.faulty else 1e-3)
