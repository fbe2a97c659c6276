"""Healthy trainings on unusual data."""

import torch
from benchmarks.health import nets
from benchmarks.health.controls.registry import control
from benchmarks.health.data import CONTEXT, by_class
from benchmarks.health.training import Batch, Setup
from torch import Tensor, nn


@control("cnn")
def labels_half_wrong(s: Setup) -> None:
    """Half of the labels are random, the same ones in every epoch."""
    drawn = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(s.data.targets), generator=drawn) < 0.5
    s.data.targets = torch.where(wrong, torch.randint(10, s.data.targets.shape, generator=drawn), s.data.targets)


@control("cnn")
def sorted_by_class(s: Setup) -> None:
    """Samples stand sorted by class in runs of 8, four in a batch: the loss jumps, and falls all the same."""
    by_class(s.data, 8)
    s.shuffle = False
    s.options["lr"] *= 0.6


@control("resnet cnn_bn deep")
def few_samples(s: Setup) -> None:
    """128 samples, learnt by heart: accuracy 100 %, loss and gradients next to 0."""
    s.data.inputs, s.data.targets = s.data.inputs[:128], s.data.targets[:128]


@control("cnn")
def classes_unbalanced(s: Setup) -> None:
    """Nine of ten samples belong to one class."""
    s.data.inputs, s.data.targets = _unbalanced(s.data.inputs, s.data.targets)
    s.data.held_out_inputs, s.data.held_out_targets = _unbalanced(s.data.held_out_inputs, s.data.held_out_targets)


@control("resnet")
def batches_small(s: Setup) -> None:
    """Batches of 4: the loss is noisy."""
    s.batch_size = 4
    s.options["lr"] *= 0.3


@control("vgg deep")
def inputs_from_zero_to_one(s: Setup) -> None:
    """Pixels from 0 to 1, as ToTensor gives them."""
    for name in ("inputs", "held_out_inputs"):
        pixels = getattr(s.data, name)
        setattr(s.data, name, (pixels - pixels.min()) / (pixels.max() - pixels.min()))


@control("cnn_bn")
def inputs_augmented(s: Setup) -> None:
    """Training pictures are shifted and have noise and holes; validation has none."""

    def augment(step: int, batch: Batch) -> Batch:
        pictures = batch[0].roll(step % 3 - 1, -1)
        return pictures * (torch.rand_like(pictures) > 0.2) + 0.3 * torch.randn_like(pictures), batch[1]

    s.on_batch.append(augment)


@control("lstm")
def tokens_rare(s: Setup) -> None:
    """A vocabulary of 2,000 of which 100 occur: most rows of the embedding never get a gradient."""
    new = nn.Embedding(2000, s.layer("embedding").embedding_dim)
    nn.init.normal_(new.weight, std=0.1)
    s.net.embedding = new


@control("lstm")
def tokens_padded(s: Setup) -> None:
    """Three quarters of each text are padding, which the loss leaves out."""
    length = CONTEXT // 4
    s.data.inputs, s.data.held_out_inputs = (_padded(x, length) for x in (s.data.inputs, s.data.held_out_inputs))
    s.loss = lambda logits, targets: nn.functional.cross_entropy(
        logits[:, :length].flatten(0, 1), targets[:, :length].flatten()
    )


@control("tanh")
def autoencoder(s: Setup) -> None:
    """The model gives back its input through a narrow middle; the loss is a squared error."""
    s.net = nets.mlp(nn.Tanh)
    s.net.fc3, s.net.fc4, s.net.head = nn.Linear(64, 8), nn.Linear(8, 64), nn.Linear(64, 64)
    s.classifies = False
    flat: dict[str, Tensor] = {}

    def keep(step: int, batch: Batch) -> Batch:
        flat["inputs"] = batch[0].flatten(1)
        return batch

    s.on_batch.append(keep)
    s.loss = lambda outputs, targets: nn.functional.mse_loss(outputs, flat["inputs"])


@control("tanh")
def regression(s: Setup) -> None:
    """The label is a number to be hit, not a class; it is centred, and its error is given in large units."""
    head = s.layer("head")
    s.net.head = nn.Linear(head.in_features, 1)
    s.classifies = False
    s.optimizer, s.options = torch.optim.AdamW, {"lr": 2e-3}
    s.loss = lambda outputs, targets: nn.functional.huber_loss(outputs[:, 0] * 20, (targets - 4.5) * 20)


@control("vit mixer")
def several_labels(s: Setup) -> None:
    """Ten sigmoids with a binary loss each, of which nine have a target of 0."""
    s.loss = lambda logits, targets: nn.functional.binary_cross_entropy_with_logits(
        logits, nn.functional.one_hot(targets, 10).float()
    )


def _unbalanced(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    kept = (targets == 3) | (torch.arange(len(targets)) % 90 == 0)
    return inputs[kept], targets[kept]


def _padded(windows: Tensor, length: int) -> Tensor:
    padded = windows.clone()
    padded[:, length:] = 0
    return padded
