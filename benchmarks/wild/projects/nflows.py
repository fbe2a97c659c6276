"""nflows: its README's masked autoregressive flow on two moons, and a spline flow with LU layers on two circles."""

import torch
from nflows import transforms as tf
from nflows.distributions import StandardNormal
from nflows.flows import Flow
from nflows.nn.nets import ResidualNet
from sklearn import datasets

FAULT = ("rate", "lr=3 instead of 3e-3 in the autoregressive flow")
VARIANTS = ("autoregressive", "spline")


def net(inputs, outputs):
    return ResidualNet(inputs, outputs, hidden_features=16, num_blocks=1)


def train(run):
    layers = []
    for i in range(4):
        if run.variant == "autoregressive":
            layers += [tf.ReversePermutation(features=2), tf.MaskedAffineAutoregressiveTransform(2, hidden_features=16)]
        else:
            options = {"tails": "linear", "tail_bound": 4, "num_bins": 6}
            spline = tf.PiecewiseRationalQuadraticCouplingTransform([i % 2, 1 - i % 2], net, **options)
            layers += [tf.ActNorm(2), tf.LULinear(2), spline]
    flow = Flow(tf.CompositeTransform(layers), StandardNormal([2]))
    made = datasets.make_moons if run.variant == "autoregressive" else datasets.make_circles
    points = torch.tensor(made(1500, noise=0.05, random_state=0)[0], dtype=torch.float32)
    optimizer = torch.optim.Adam(flow.parameters(), lr=3.0 if run.faulty else 3e-3)
    run.descend(flow, optimizer, points[torch.randint(1500, (300, 128))], lambda x: -flow.log_prob(inputs=x).mean())
