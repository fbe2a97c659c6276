"""gpytorch: its tutorials: a variational Gaussian process with Adam 0.01, an exact one with Adam 0.1."""

import gpytorch
import torch

FAULT = ("rate", "lr=1 instead of 0.01 in the variational one")
VARIANTS = ("variational", "exact")


class Exact(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Variational(gpytorch.models.ApproximateGP):
    def __init__(self, points):
        distribution = gpytorch.variational.CholeskyVariationalDistribution(points.size(0))
        super().__init__(gpytorch.variational.VariationalStrategy(self, points, distribution))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    forward = Exact.forward


def train(run):
    x = torch.linspace(0, 1, 100)
    y, likelihood = (6.283 * x).sin() + 0.2 * torch.randn(100), gpytorch.likelihoods.GaussianLikelihood()
    model = Exact(x, y, likelihood) if run.variant == "exact" else Variational(x[::4].clone())
    mll, rate = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model), 0.1
    if run.variant == "variational":
        model, mll, rate = (
            torch.nn.ModuleList([model, likelihood]),
            gpytorch.mlls.VariationalELBO(likelihood, model, 100),
            1.0 if run.faulty else 0.01,
        )
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    body = model if run.variant == "exact" else model[0]
    run.descend(model, optimizer, [(x, y)] * 150, lambda x, y: -mll(body(x), y))
