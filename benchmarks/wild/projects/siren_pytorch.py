"""siren-pytorch: the network of its README learns a photograph, with the paper's Adam 1e-4."""

import torch
from benchmarks.recipes import data
from siren_pytorch import SirenNet, SirenWrapper

FAULT = ("rate", "lr=10 instead of 1e-4")


def train(run):
    image = data.patches(48)[20:21]
    net = SirenNet(
        dim_in=2, dim_hidden=128, dim_out=3, num_layers=4, final_activation=torch.nn.Sigmoid(), w0_initial=30.0
    )
    wrapper = SirenWrapper(net, image_width=48, image_height=48)
    optimizer = torch.optim.Adam(wrapper.parameters(), lr=10.0 if run.faulty else 1e-4)
    run.descend(wrapper, optimizer, [image] * 200, wrapper)
