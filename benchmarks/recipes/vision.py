"""Pictures: torchvision's and timm's models by their own training scripts, and torch's examples."""

import math
from functools import partial
from typing import Any

import torch
import torchvision  # type: ignore[import-untyped]  # has no stubs
from benchmarks.recipes import data
from benchmarks.recipes.recipe import STEPS, Plain, Training, loader, recipe, supervised
from torch import Tensor, nn, optim
from torch.nn import functional as F  # noqa: N812  # the usual name
from torchvision.models.segmentation import lraspp_mobilenet_v3_large  # type: ignore[import-untyped]  # has no stubs

TORCHVISION = "pytorch/vision references/classification/README.md"
TIMM = "huggingface/pytorch-image-models train.py, hfdocs/source/training_script.mdx"
EXAMPLES = "pytorch/examples {}"

REFERENCE_BATCH = 256
"""Samples for which torchvision's rates are meant. SGD's are scaled to ours as its README says, AdamW's by the
root."""


def warm_cosine(optimizer: optim.Optimizer, warm: int = STEPS // 20, steps: int = STEPS) -> Any:
    """A linear warm-up, then half a cosine to 0."""

    def share(step: int) -> float:
        return (step + 1) / warm if step < warm else (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2

    return optim.lr_scheduler.LambdaLR(optimizer, share)


def classified(net: nn.Module, optimizer: Any, size: int, smoothing: float = 0.0, steps: int = STEPS) -> Training:
    loss = supervised(nn.CrossEntropyLoss(label_smoothing=smoothing))
    module = Plain(net, loss, optimizer, partial(warm_cosine, steps=steps))
    return Training(module, loader(*data.digits(size, 3)), steps)


# torchvision's models, with the rates of its README


def reference(rate: float, decay: float = 1e-4) -> Any:
    return partial(optim.SGD, lr=rate * 16 / REFERENCE_BATCH, momentum=0.9, weight_decay=decay)


def torchvision_model(name: str, optimizer: Any, size: int = 32, **options: Any) -> None:
    def build() -> Training:
        return classified(torchvision.models.get_model(name, num_classes=10, **options), optimizer, size, steps=100)

    recipe(f"torchvision: {name}", f"{TORCHVISION}, {name}")(build)


torchvision_model("resnet18", reference(0.1))
torchvision_model("shufflenet_v2_x0_5", reference(0.5, 4e-5))
torchvision_model(
    "mobilenet_v3_small", partial(optim.RMSprop, lr=0.064 * 16 / 1024, alpha=0.9, momentum=0.9, eps=0.0316)
)


@recipe("torchvision: VisionTransformer", f"{TORCHVISION}, vit_b_16: AdamW 3e-3, decay 0.3, smoothing 0.11, clipped")
def vision_transformer() -> Training:
    net = torchvision.models.VisionTransformer(32, 8, 4, 4, 64, 128, num_classes=10)
    training = classified(net, partial(optim.AdamW, lr=3e-3 * (16 / 512) ** 0.5, weight_decay=0.3), 32, smoothing=0.11)
    training.options["gradient_clip_val"] = 1.0
    return training


@recipe(
    "torchvision: lraspp_mobilenet_v3_large", "pytorch/vision references/segmentation: SGD 0.02, polynomial schedule"
)
def segmentation() -> Training:
    net = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=2)
    images, _ = data.digits(64, 3)

    def loss(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0])["out"], batch[1])

    def schedule(optimizer: optim.Optimizer) -> Any:
        return optim.lr_scheduler.PolynomialLR(optimizer, STEPS, 0.9)

    sgd = partial(optim.SGD, lr=0.02 * 8 / 32, momentum=0.9, weight_decay=1e-4)
    masks = (images[:, 0] > 0).long()
    return Training(Plain(net, loss, sgd, schedule), loader(images, masks, size=4), steps=100)


# timm's models of its own tests, with the settings of its training script


def timm_model(name: str, size: int = 48, rate: float = 5e-4, **options: Any) -> None:
    def build() -> Training:
        import timm  # type: ignore[import-not-found]  # an optional package

        net = timm.create_model(name, pretrained=False, num_classes=10, **options)
        return classified(net, partial(optim.AdamW, lr=rate, weight_decay=0.05), size, smoothing=0.1)

    recipe(f"timm: {name}", f"{TIMM}: {name}, AdamW, cosine with warm-up, smoothing 0.1", "timm")(build)


timm_model("test_vit", img_size=48)
timm_model("test_vit2", img_size=48)
timm_model("test_vit4", img_size=48)
timm_model("test_resnet")
timm_model("test_efficientnet")
timm_model("test_efficientnet_gn")
timm_model("test_byobnet")
timm_model("test_convnext")
timm_model("test_convnext3")
timm_model("test_mambaout")


# torch's examples and tutorials


@recipe("MNIST by Adadelta", EXAMPLES.format("mnist/main.py: Adadelta 1.0, StepLR 0.7"))
def mnist() -> Training:
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 6 * 6, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
        nn.LogSoftmax(dim=1),
    )
    net_of = Plain(net, supervised(F.nll_loss), partial(optim.Adadelta, lr=1.0))
    return Training(net_of, loader(*data.digits(16), size=64))


@recipe(
    "CIFAR tutorial", "docs.pytorch.org tutorials/beginner/blitz/cifar10_tutorial: SGD 0.001, momentum 0.9, batch 4"
)
def cifar_tutorial() -> Training:
    net = nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
    net_of = Plain(net, supervised(F.cross_entropy), partial(optim.SGD, lr=0.001, momentum=0.9))
    return Training(net_of, loader(*data.digits(32, 3), size=4), steps=1000)


@recipe("super-resolution", EXAMPLES.format("super_resolution: orthogonal weights, Adam 0.01, squared error"))
def super_resolution() -> Training:
    net = nn.Sequential(
        nn.Conv2d(1, 64, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 9, 3, padding=1),
        nn.PixelShuffle(3),
    )
    gain = nn.init.calculate_gain("relu")
    for place, layer in enumerate(net):
        if isinstance(layer, nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain if place < 6 else 1.0)
    large = data.patches(48).mean(1, keepdim=True)
    small = F.interpolate(large, size=(16, 16), mode="bicubic")
    return Training(Plain(net, supervised(F.mse_loss), partial(optim.Adam, lr=0.01)), loader(small, large, size=4))


class UNet(nn.Module):
    """Two levels of milesial/Pytorch-UNet."""

    def __init__(self, width: int = 8, classes: int = 2) -> None:
        super().__init__()
        self.before, self.inner, self.after = _double(1, width), _double(width, 2 * width), _double(2 * width, width)
        self.up, self.head = nn.ConvTranspose2d(2 * width, width, 2, stride=2), nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        outer = self.before(images)
        inner = self.up(self.inner(F.max_pool2d(outer, 2)))
        return self.head(self.after(torch.cat([outer, inner], 1)))


def _double(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for given in (inputs, outputs):
        layers += [nn.Conv2d(given, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


@recipe(
    "U-Net", "milesial/Pytorch-UNet train.py: RMSprop 1e-5, momentum 0.999, decay 1e-8, cross entropy and Dice, clipped"
)
def unet() -> Training:
    images, _ = data.digits(32)

    def loss(net: Any, batch: Any) -> Tensor:
        logits = net(batch[0])
        shares, truth = logits.softmax(1), F.one_hot(batch[1], 2).permute(0, 3, 1, 2).float()
        overlap = 2 * (shares * truth).sum((0, 2, 3)) / (shares + truth).sum((0, 2, 3))
        return F.cross_entropy(logits, batch[1]) + 1 - overlap.mean()

    optimizer = partial(optim.RMSprop, lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True)
    module = Plain(UNet(), loss, optimizer)
    return Training(module, loader(images, (images[:, 0] > 0).long()), options={"gradient_clip_val": 1.0})


@recipe("mixup", "facebookresearch/mixup-cifar10 train.py: alpha 1, SGD 0.1, momentum 0.9, decay 1e-4")
def mixup() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        images, labels = batch
        share = float(torch.distributions.Beta(1.0, 1.0).sample())
        order = torch.randperm(len(images))
        logits = net(share * images + (1 - share) * images[order])
        return share * F.cross_entropy(logits, labels) + (1 - share) * F.cross_entropy(logits, labels[order])

    net = torchvision.models.resnet18(num_classes=10)
    net.conv1, net.maxpool = nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.Identity()
    sgd = partial(optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-4)
    return Training(Plain(net, loss, sgd), loader(*data.digits(8), size=32), steps=80, falls=False)


@recipe(
    "knowledge distillation", "docs.pytorch.org tutorials/beginner/knowledge_distillation_tutorial: T 2, 0.25 and 0.75"
)
def distillation() -> Training:
    images, labels = data.digits()
    inputs = images.flatten(1)

    def mlp(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 10))

    teacher = mlp(256)
    optimizer = optim.Adam(teacher.parameters(), lr=0.001)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(teacher(inputs), labels).backward()
        optimizer.step()
    teacher.eval().requires_grad_(False)

    def loss(net: Any, batch: Any) -> Tensor:
        logits = net(batch[0])
        with torch.no_grad():
            wanted = (teacher(batch[0]) / 2).softmax(-1)
        soft = (wanted * (wanted.log() - (logits / 2).log_softmax(-1))).sum() / len(logits) * 4
        return 0.25 * soft + 0.75 * F.cross_entropy(logits, batch[1])

    return Training(Plain(mlp(32), loss, partial(optim.Adam, lr=0.001)), loader(inputs, labels, size=128), steps=300)
