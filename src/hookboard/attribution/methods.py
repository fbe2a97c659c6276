"""Class-activation maps: which places of a picture speak for a class, by what a layer returned there.

All methods take `a`, what the layer returned, and most `g`, the gradient of the class's score (the logit) with respect
to it, both of shape (n, channels, height, width), and give a map of shape (n, height, width), not normalized.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Method = Literal["grad_cam", "grad_cam++", "layer_cam", "xgrad_cam", "hires_cam", "eigen_cam", "cam"]


def cam(a: Tensor, weight: Tensor) -> Tensor:
    """Zhou et al., "Learning deep features for discriminative localization", 2016: the head's weights times the maps.

    Args:
        a: what is pooled over all places and goes into a linear head.
        weight: shape (n, channels), the head's weights for each sample's class.
    """
    return (weight[:, :, None, None] * a).sum(dim=1)


def grad_cam(a: Tensor, g: Tensor) -> Tensor:
    """Selvaraju et al., "Grad-CAM", 2017, equations 1 and 2."""
    return _weighted(g.mean(dim=(2, 3), keepdim=True), a)


def grad_cam_plus_plus(a: Tensor, g: Tensor) -> Tensor:
    """Chattopadhay et al., "Grad-CAM++", 2018, equation 19, for the exponential of the score."""
    square = g.square()
    below = 2 * square + a.sum(dim=(2, 3), keepdim=True) * square * g
    alpha = torch.where(below != 0, square / below, 0)
    return _weighted((alpha * g.relu()).sum(dim=(2, 3), keepdim=True), a)


def layer_cam(a: Tensor, g: Tensor) -> Tensor:
    """Jiang et al., "LayerCAM", 2021, equation 6."""
    return _weighted(g.relu(), a)


def xgrad_cam(a: Tensor, g: Tensor) -> Tensor:
    """Fu et al., "Axiom-based Grad-CAM", 2020, equation 8."""
    below = a.sum(dim=(2, 3), keepdim=True)
    weight = torch.where(below != 0, (g * a).sum(dim=(2, 3), keepdim=True) / below, 0)
    return _weighted(weight, a)


def hires_cam(a: Tensor, g: Tensor) -> Tensor:
    """Draelos and Carin, "Use HiResCAM instead of Grad-CAM", 2020, with what speaks against the class cut off."""
    return _weighted(g, a)


def eigen_cam(a: Tensor) -> Tensor:
    """Muhammad and Yeasin, "Eigen-CAM", 2020: what all channels have in common, of no class.

    The projection on the first principal component of the channels, centred. Its sign, which is free, is the one that
    goes with the mean over the channels.
    """
    flat = a.flatten(2).transpose(1, 2)
    centred = flat - flat.mean(dim=1, keepdim=True)
    component = torch.linalg.svd(centred, full_matrices=False).Vh[:, :1]
    projection = (centred * component).sum(-1)
    sign = (projection * centred.mean(dim=2)).sum(dim=1, keepdim=True).sign()
    signed: Tensor = projection * torch.where(sign == 0, 1, sign)
    return signed.relu().reshape(len(a), *a.shape[2:])


def _weighted(weight: Tensor, a: Tensor) -> Tensor:
    return (weight * a).sum(dim=1).relu()


OF_GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "grad_cam": grad_cam,
    "grad_cam++": grad_cam_plus_plus,
    "layer_cam": layer_cam,
    "xgrad_cam": xgrad_cam,
    "hires_cam": hires_cam,
}
"""The methods that take the gradient."""
