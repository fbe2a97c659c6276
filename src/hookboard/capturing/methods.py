"""Methods for class-activation maps, listed in `METHODS` and `Method`: which regions raise the score of a class.

They sum the channels of `a`, a layer's output, after weighting them, mostly by `g`, the gradient of the class's score
(the logit) with respect to it; both have shape (n, channels, height, width). They return maps of shape (n, height,
width), not normalized; all but `cam` set negative values to 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Method = Literal["grad_cam", "grad_cam++", "layer_cam", "xgrad_cam", "hires_cam", "eigen_cam", "cam"]


def cam(a: Tensor, weight: Tensor) -> Tensor:
    """Weight channels by a linear head. Zhou et al., "Learning deep features for discriminative localization", 2016."""
    # The head's input must be the global average of the maps.
    return (weight[:, :, None, None] * a).sum(dim=1)


def grad_cam(a: Tensor, g: Tensor) -> Tensor:
    """Weight each channel by the mean of its gradient. Selvaraju et al., "Grad-CAM", 2017, equations 1 and 2."""
    return _weighted(g.mean(dim=(2, 3), keepdim=True), a)


def grad_cam_plus_plus(a: Tensor, g: Tensor) -> Tensor:
    """Weight channels by weighted sums of positive gradients. Chattopadhay et al., "Grad-CAM++", 2018, equation 19."""
    square = g.square()
    below = 2 * square + a.sum(dim=(2, 3), keepdim=True) * square * g
    alpha = torch.where(below != 0, square / below, 0)  # of a position, for the exponential of the score
    return _weighted((alpha * g.relu()).sum(dim=(2, 3), keepdim=True), a)


def layer_cam(a: Tensor, g: Tensor) -> Tensor:
    """Weight each position by its gradient, but by 0 if negative. Jiang et al., "LayerCAM", 2021, equation 6."""
    return _weighted(g.relu(), a)


def xgrad_cam(a: Tensor, g: Tensor) -> Tensor:
    """Weight each channel by `sum(g * a) / sum(a)`. Fu et al., "Axiom-based Grad-CAM", 2020, equation 8."""
    below = a.sum(dim=(2, 3), keepdim=True)
    weight = torch.where(below != 0, (g * a).sum(dim=(2, 3), keepdim=True) / below, 0)
    return _weighted(weight, a)


def hires_cam(a: Tensor, g: Tensor) -> Tensor:
    """Weight each element by its gradient. Draelos and Carin, "Use HiResCAM instead of Grad-CAM", 2020."""
    return _weighted(g, a)


def eigen_cam(a: Tensor) -> Tensor:
    """Project on the first principal component of the centred channels. Muhammad and Yeasin, "Eigen-CAM", 2020."""
    flat = a.flatten(2).transpose(1, 2)
    centred = flat - flat.mean(dim=1, keepdim=True)
    component = torch.linalg.svd(centred, full_matrices=False).Vh[:, :1]
    projection = (centred * component).sum(-1)
    # The sign of a principal component is arbitrary; this one correlates with the mean over channels.
    sign = (projection * centred.mean(dim=2)).sum(dim=1, keepdim=True).sign()
    signed: Tensor = projection * torch.where(sign == 0, 1, sign)
    return signed.relu().reshape(len(a), *a.shape[2:])


def _weighted(weight: Tensor, a: Tensor) -> Tensor:
    return (weight * a).sum(dim=1).relu()


Need = Literal["gradient", "head", "nothing"]
"""What a method needs besides the layer's output: its gradient, a linear head on its global average, or nothing."""


@dataclass(frozen=True)
class CAMMethod:
    """A method for class-activation maps; `needs` says what `map` takes as its second argument, if anything."""

    title: str
    map: Callable[..., Tensor]
    needs: Need


METHODS: dict[Method, CAMMethod] = {
    "grad_cam": CAMMethod("Grad-CAM", grad_cam, "gradient"),
    "grad_cam++": CAMMethod("Grad-CAM++", grad_cam_plus_plus, "gradient"),
    "layer_cam": CAMMethod("LayerCAM", layer_cam, "gradient"),
    "xgrad_cam": CAMMethod("XGrad-CAM", xgrad_cam, "gradient"),
    "hires_cam": CAMMethod("HiResCAM", hires_cam, "gradient"),
    "eigen_cam": CAMMethod("Eigen-CAM", eigen_cam, "nothing"),
    "cam": CAMMethod("CAM", cam, "head"),
}
"""All methods, by the names that users give. `Method` repeats these: a type checker cannot read them here."""
