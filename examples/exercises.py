"""What people write hooks for, each in a few lines: five small exercises without a Trainer.

python examples/exercises.py
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torchvision.models import vgg16_bn

from hookboard import Edit, Scale, capture


def feature_map_of_a_vgg_layer() -> Tensor:
    """Keep what one layer of a large network returns."""
    net = vgg16_bn().eval()
    with torch.no_grad(), capture(net, "features.18") as seen:
        net(torch.randn(1, 3, 64, 64))
    print(seen)
    return seen["features.18"].output


class TwoLayers(nn.Module):
    """Returns what its layers take and give, to be compared with what hooks see."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(2, 2), nn.Linear(2, 1)
        self.relu, self.relu6 = nn.ReLU(), nn.ReLU6()
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        first = self.linear_1(x)
        second = self.linear_2(first)
        third = self.relu(second)
        self.relu6(third)
        return [x, first, second], [first, second, third]


def inputs_and_outputs_of_every_layer_but_relu6() -> float:
    """Check that hooks see what `forward` computes."""
    net = TwoLayers()
    with capture(net, types="!ReLU6", roles=["input", "output"]) as seen:
        inputs, outputs = net(torch.full((2, 2), 0.1))
    print(seen.summary())
    differences = [
        (kept - returned).abs().max().item()
        for captured, given, gave in zip(seen.values(), inputs, outputs, strict=True)
        for kept, returned in [(captured.input, given), (captured.output, gave)]
    ]
    return max(differences)


def gradient_of_an_intermediate_tensor() -> float:
    """Read the gradient of a tensor that is no leaf: `.grad` has none."""
    w, x = torch.tensor([1.0], requires_grad=True), torch.tensor([2.0])
    with capture(nn.Module()) as seen:
        a = seen.watch(w + x, "a")
        (a * (w + 1)).backward()
    print(f"the gradient at a is {seen['a'].grad_output.item():g}, at w {w.grad.item():g}")
    return seen["a"].grad_output.item()


def doubled_gradient() -> float:
    """Change a gradient on its way back: every weight before the layer learns from the double."""
    net = nn.Sequential(OrderedDict(first=nn.Linear(2, 2, bias=False), last=nn.Linear(2, 1, bias=False)))
    x = torch.ones(1, 2)
    net(x).sum().backward()
    once = net.first.weight.grad.clone()
    net.zero_grad()
    with capture(net, edit=Edit(Scale(2.0), "first", role="grad_output")):
        net(x).sum().backward()
    ratio = (net.first.weight.grad / once).mean().item()
    print(f"the gradient of the first layer's weights is {ratio:g} times what it was")
    return ratio


def activations_of_a_pooling_layer() -> Tensor:
    """Keep what the pooling layer of a small network returns."""
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10))
    with capture(net, types="AdaptiveAvgPool2d") as seen:
        net(torch.randn(1, 1, 28, 28))
    print(seen)
    return seen["1"].output


if __name__ == "__main__":
    feature_map_of_a_vgg_layer()
    inputs_and_outputs_of_every_layer_but_relu6()
    gradient_of_an_intermediate_tensor()
    doubled_gradient()
    activations_of_a_pooling_layer()
