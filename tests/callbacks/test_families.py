"""torchvision's models, of random weights, have pictures without a word about their layers."""

import pytest
import torch
from classifiers import classifier
from toys import Toy, events, loader, trainer

from hookboard import CAMLogger, FeatureMapLogger

pytestmark = [pytest.mark.large, pytest.mark.filterwarnings("ignore:The default weight initialization")]

FAMILIES = {
    "convnext_tiny": ("features", 64),
    "densenet121": ("features", 64),
    "googlenet": ("inception5b", 64),
    "maxvit_t": ("blocks.1", 64),
    "mobilenet_v3_small": ("features", 64),
    "resnet18": ("layer4", 64),
    "shufflenet_v2_x0_5": ("conv5", 64),
    "squeezenet1_0": ("classifier.2", 64),
    "swin_t": ("features.7.1.attn", 64),
    "vit_b_32": ("encoder.layers.encoder_layer_1.self_attention", 64),
}
"""Of families whose last maps stand elsewhere one model each: the layer of its maps, and the size of a picture."""


def shown(folder, net, data, *callbacks):
    run = trainer(folder, *callbacks, limit_val_batches=1.0)
    run.validate(Toy(net), loader([data]))
    return events(folder).Tags()["images"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_classifier_has_feature_maps_and_a_class_activation_map(tmp_path, family):
    layer, size = FAMILIES[family]
    torch.manual_seed(0)
    net = classifier(family)
    tags = shown(tmp_path, net, torch.randn(2, 3, size, size), FeatureMapLogger(), CAMLogger())
    (cam,) = [tag for tag in tags if tag.startswith("cam/")]
    assert cam == f"cam/net.{layer}/grad_cam"
    assert 1 <= len(tags) - 1 <= 16
