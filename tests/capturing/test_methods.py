"""Every method gives what torch-cam or pytorch-grad-cam gives, each after its own normalization."""

import numpy as np
import pytest
import pytorch_grad_cam
import torch
import torchcam.methods
import torchvision
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from pytorch_grad_cam.utils.svd_on_activations import get_2d_projection

from hookboard.capturing.attribute import ClassificationTap, TargetLayer, attribute
from hookboard.capturing.methods import METHODS, cam, eigen_cam

LAYERS = {"resnet18": "layer4", "densenet121": "features.denseblock4"}
"""Layers behind which nothing works in place: the other libraries would see what became of them."""

pytestmark = pytest.mark.large


@pytest.fixture(scope="module", params=LAYERS)
def case(request):
    """A model, a layer of it, pictures, the class that each is to be, and what we know of the layer."""
    torch.manual_seed(0)
    model = getattr(torchvision.models, request.param)().eval()
    # Random weights give gradients so small that the epsilons of the other libraries would count.
    list(model.modules())[-1].weight.data *= 300
    pictures, classes = torch.randn(2, 3, 96, 96), [3, 7]
    tap = ClassificationTap(model, 2)
    tap.attach()
    with torch.inference_mode():
        model(pictures)
    tap.detach()
    layer = TargetLayer(LAYERS[request.param], model.get_submodule(LAYERS[request.param]))
    seen = attribute(tap.found, [layer], lambda scores: torch.tensor(classes), with_gradient=True)
    return model, layer, pictures, classes, seen


def min_max(maps):
    """torch-cam's own normalization."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / (high - low).clamp(min=1e-12)


def scaled(maps):
    """pytorch-grad-cam's own, but for the resizing."""
    maps = maps - maps.amin((1, 2), keepdim=True)
    return maps / (1e-7 + maps.amax((1, 2), keepdim=True))


def assert_same(ours, theirs):
    assert ours.shape == theirs.shape
    assert float(theirs.std()) > 0
    assert torch.allclose(ours, theirs, atol=3e-4)  # Grad-CAM++ of pytorch_grad_cam adds an epsilon to a divisor


@pytest.mark.parametrize(
    ("method", "library"),
    [
        ("grad_cam", "GradCAM"),
        ("grad_cam++", "GradCAMPlusPlus"),
        ("layer_cam", "LayerCAM"),
        ("xgrad_cam", "XGradCAM"),
        ("hires_cam", "HiResCAM"),
    ],
)
def test_as_pytorch_grad_cam(case, method, library):
    model, layer, pictures, classes, seen = case
    with getattr(pytorch_grad_cam, library)(model, [layer.module]) as extractor:
        targets = [ClassifierOutputTarget(k) for k in classes]
        extractor.activations_and_grads(pictures)
        height, width = seen.activation.shape[2:]
        extractor.get_target_width_height = lambda _: (width, height)
        theirs = torch.from_numpy(np.asarray(extractor(pictures, targets)))
    assert_same(scaled(METHODS[method].map(seen.activation, seen.gradient)), theirs)


def test_eigen_cam_as_pytorch_grad_cam_up_to_the_sign_that_it_leaves_to_chance(case):
    seen = case[-1]
    ours = eigen_cam(seen.activation)
    theirs = torch.from_numpy(get_2d_projection(seen.activation.numpy().copy()))
    for mine, their in zip(ours, theirs, strict=True):
        signed = their if torch.dot(mine.flatten(), their.flatten().relu()) > 0.5 * mine.square().sum() else -their
        assert_same(scaled(mine[None]), scaled(signed.relu()[None].float()))


def test_cam_as_torch_cam():
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    pictures = torch.randn(1, 3, 96, 96)
    with torchcam.methods.CAM(model, model.layer4, model.fc) as extractor:
        scores = model(pictures)
        theirs = extractor(3, scores, normalized=False)[0]
        a = extractor.hook_a[0].detach()
    assert_same(min_max(cam(a, model.fc.weight[[3]])).detach(), min_max(theirs.detach()))
