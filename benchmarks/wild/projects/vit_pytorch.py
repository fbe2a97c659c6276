"""vit-pytorch: its README: SimpleViT (with lion-pytorch, at a third of Adam's rate) and CCT, on digits of 32x32."""

import torch
from benchmarks.recipes import data
from lion_pytorch import Lion
from vit_pytorch import SimpleViT
from vit_pytorch.cct import CCT

FAULT = ("rate", "lr=0.3 instead of 3e-4 in SimpleViT")
VARIANTS = ("SimpleViT", "CCT")


def train(run):
    if run.variant == "SimpleViT":
        model = SimpleViT(image_size=32, patch_size=8, num_classes=10, dim=48, depth=2, heads=4, mlp_dim=96)
        optimizer = Lion(model.parameters(), lr=0.3 if run.faulty else 3e-4, weight_decay=1e-2)
    else:
        sizes = {"n_conv_layers": 1, "kernel_size": 5, "stride": 2, "padding": 2, "num_layers": 2, "num_heads": 4}
        pooling = {"pooling_kernel_size": 3, "pooling_stride": 2, "pooling_padding": 1}
        model = CCT(img_size=32, embedding_dim=48, mlp_ratio=2.0, num_classes=10, **sizes, **pooling)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = data.digits(32, channels=3)
    batches = [torch.randint(1500, (16,)) for _ in range(240 if run.variant == "SimpleViT" else 120)]
    batches = ((images[rows], labels[rows]) for rows in batches)
    run.descend(model, optimizer, batches, lambda x, y: torch.nn.functional.cross_entropy(model(x), y))
