"""PINA: its tutorial of the Poisson equation on a square: Softplus, Adam 0.006."""

import torch
from pina import Trainer
from pina.model import FeedForward
from pina.optim import TorchOptimizer
from pina.problem.zoo import Poisson2DSquareProblem
from pina.solver import PhysicsInformedSingleModelSolver

FAULT = ("rate", "lr=6 instead of 0.006")


def train(run):
    problem = Poisson2DSquareProblem()
    problem.discretise_domain(20, "grid", domains=["D"])
    problem.discretise_domain(20, "random", domains=["boundary"])
    sizes = {"input_dimensions": len(problem.input_variables), "output_dimensions": len(problem.output_variables)}
    solver = PhysicsInformedSingleModelSolver(
        problem=problem,
        model=FeedForward(layers=[10, 10], func=torch.nn.Softplus, **sizes),
        optimizer=TorchOptimizer(torch.optim.Adam, lr=6.0 if run.faulty else 0.006, weight_decay=1e-8),
    )
    quiet = {"accelerator": "cpu", "enable_model_summary": False, "enable_progress_bar": False}
    Trainer(solver, max_epochs=300, train_size=0.8, val_size=0.2, callbacks=run.callbacks, **quiet).train()
