"""torchvision's classifiers of random weights; of the families that are large, a small one."""

from functools import partial

from torchvision import models

SMALL = {
    "maxvit_t": partial(
        models.MaxVit,
        input_size=(64, 64),
        stem_channels=8,
        partition_size=2,
        block_channels=[8, 16],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.1,
    ),
    "vit_b_32": partial(
        models.VisionTransformer,
        image_size=64,
        patch_size=32,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        mlp_dim=32,
    ),
}
"""With the blocks of the one that is named, but few and narrow: it has 30 or 90 million weights to draw."""


def classifier(name):
    return SMALL.get(name, getattr(models, name))()
