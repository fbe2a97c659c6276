"""Thirty noisy trainings that do not diverge.

They were written and committed before a monitor saw any of them.
"""

import math
from functools import partial
from typing import Any

import torch
from benchmarks.early.parts import (
    Batch,
    Experts,
    autocast_to_half,
    characters,
    classes,
    copied,
    groups,
    images,
    repeats,
    squared,
    sums_of_two,
    waves,
)
from benchmarks.early.program import program, rising, stream
from benchmarks.health.data import digits
from benchmarks.health.nets import Patches, Recurrent, cnn, mixer, mlp, resnet, transformer, vit
from benchmarks.recipes.data import table, windows
from benchmarks.recipes.generative import CRITIC, ORIGINAL, Adversarial, Timed, Variational, moons, perceptron, rows
from benchmarks.recipes.recipe import Plain, Training, loader
from benchmarks.recipes.science import Episodes, Following, Moves, Policy
from torch import Tensor, nn, optim
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.utils.data import DataLoader

CLIPPED = {"gradient_clip_val": 1.0}

healthy = partial(program, "healthy")

# Small batches and noise in the data


@healthy("MLP, one row a step")
def one_row() -> Training:
    return Training(Plain(mlp(nn.Tanh, 64, 2), classes, partial(optim.SGD, lr=0.01)), stream(images(1)), 800)


@healthy("CNN, two rows a step, momentum")
def two_rows() -> Training:
    sgd = partial(optim.SGD, lr=0.005, momentum=0.9)
    return Training(Plain(resnet(), classes, sgd), stream(images(2)), 600)


@healthy("MLP, dropout of a half behind each layer")
def much_dropout() -> Training:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (64, 256, 256):
        layers += [nn.Linear(inputs, 256), nn.ReLU(), nn.Dropout(0.5)]
    net = nn.Sequential(*layers, nn.Linear(256, 10))
    return Training(Plain(net, classes, partial(optim.Adam, lr=1e-3)), stream(images()), 600)


@healthy("ViT, 40 % of the labels wrong")
def noisy_labels() -> Training:
    data = digits()
    wrong = torch.rand(len(data.targets)) < 0.4
    targets = torch.where(wrong, torch.randint(10, data.targets.shape), data.targets)
    return Training(Plain(vit(2), classes, partial(optim.AdamW, lr=1e-3)), loader(data.inputs, targets), 600)


@healthy("regression, targets with heavy tails, Huber's loss")
def heavy_tails() -> Training:
    inputs, targets = table("diabetes")
    noise = torch.distributions.StudentT(1.5).sample((len(targets), 1))

    def loss(net: Any, batch: Any) -> Tensor:
        return F.huber_loss(net(batch[0]), batch[1])

    net = perceptron(inputs.shape[1], 64, 64, 1)
    return Training(Plain(net, loss, partial(optim.Adam, lr=1e-3)), loader(inputs, targets + noise), 600)


@healthy("regression, targets with heavy tails, squares, clipped")
def heavy_tails_clipped() -> Training:
    inputs, targets = table("diabetes")
    noise = torch.distributions.StudentT(2.5).sample((len(targets), 1))
    net = perceptron(inputs.shape[1], 64, 64, 1)
    module = Plain(net, squared, partial(optim.SGD, lr=0.01, momentum=0.9))
    return Training(module, loader(inputs, targets + noise), 600, CLIPPED)


@healthy("CNN, mixup")
def mixup() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        share, order = float(torch.distributions.Beta(0.4, 0.4).sample()), torch.randperm(len(batch[0]))
        outputs = net(share * batch[0] + (1 - share) * batch[0][order])
        return share * F.cross_entropy(outputs, batch[1]) + (1 - share) * F.cross_entropy(outputs, batch[1][order])

    return Training(Plain(cnn(norm=True), loss, partial(optim.AdamW, lr=2e-3)), stream(images(16)), 600)


@healthy("counts, Poisson's loss behind an exponential")
def counts() -> Training:
    weights = torch.randn(10)

    def draw(step: int) -> Batch:
        inputs = torch.randn(16, 10)
        return inputs, torch.poisson((inputs @ weights * 0.4).exp())[:, None]

    def loss(net: Any, batch: Any) -> Tensor:
        return F.poisson_nll_loss(net(batch[0]), batch[1], full=True)

    return Training(Plain(perceptron(10, 32, 1), loss, partial(optim.Adam, lr=3e-3)), stream(draw), 600)


# Large steps that are held


@healthy("CNN, cosine with warm restarts")
def restarts() -> Training:
    schedule = partial(optim.lr_scheduler.CosineAnnealingWarmRestarts, T_0=100)
    module = Plain(cnn(norm=True), classes, partial(optim.SGD, lr=0.1, momentum=0.9), schedule)
    return Training(module, stream(images()), 600)


@healthy("tanh net at the edge of stability, all rows a step")
def edge_of_stability() -> Training:
    data = digits()
    net = mlp(nn.Tanh, 64, 3)
    return Training(Plain(net, classes, partial(optim.SGD, lr=1.0)), loader(data.inputs, data.targets, size=1440), 500)


@healthy("regression, momentum of 0.99")
def much_momentum() -> Training:
    inputs, targets = table("diabetes")
    module = Plain(perceptron(10, 64, 1), squared, partial(optim.SGD, lr=5e-4, momentum=0.99))
    return Training(module, loader(inputs, targets), 600)


@healthy("ResNet, one cycle to a high rate")
def one_cycle() -> Training:
    schedule = partial(optim.lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=500)
    module = Plain(resnet(), classes, partial(optim.SGD, lr=0.02, momentum=0.9), schedule)
    return Training(module, stream(images(64)), 500)


@healthy("GPT that copies, norms of queries and keys, rate of 0.01")
def queries_with_norm() -> Training:
    class Normed(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width)
            self.q_norm, self.k_norm = nn.LayerNorm(width // 2), nn.LayerNorm(width // 2)
            self.out, self.norm2, self.layers = (
                nn.Linear(width, width),
                nn.LayerNorm(width),
                perceptron(width, 96, width),
            )

        def forward(self, x: Tensor) -> Tensor:
            parts = self.project(self.norm(x)).chunk(3, -1)
            query, key, value = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
            heads = F.scaled_dot_product_attention(self.q_norm(query), self.k_norm(key), value, is_causal=True)
            x = x + self.out(heads.transpose(1, 2).flatten(2))
            return x + self.layers(self.norm2(x))  # type: ignore[no-any-return]  # a module gives Any

    net = transformer(2, norm_first=True)
    net.block0, net.block1 = Normed(32), Normed(32)
    schedule = rising(lambda step: min(1.0, (step + 1) / 100))
    return Training(
        Plain(net, copied, partial(optim.AdamW, lr=0.01), schedule), stream(repeats(wrong=0.1)), 600, CLIPPED
    )


@healthy("mixer, outliers of 30 deviations now and then, clipped")
def outliers_clipped() -> Training:
    draw = images()

    def spoiled(step: int) -> Batch:
        inputs, targets = draw(step)
        return inputs * (30.0 if step % 97 == 96 else 1.0), targets

    return Training(Plain(mixer(2), classes, partial(optim.AdamW, lr=1e-3)), stream(spoiled), 600, CLIPPED)


@healthy("MLP, a few batches of wrong labels, from which it recovers")
def spikes() -> Training:
    draw = images()

    def spoiled(step: int) -> Batch:
        inputs, targets = draw(step)
        return inputs, (targets + 1) % 10 if step in (210, 350, 351, 470) else targets

    return Training(Plain(mlp(), classes, partial(optim.Adam, lr=1e-3)), stream(spoiled), 600)


@healthy("MLP, shards by class")
def shards() -> Training:
    data = digits()
    of_class = [data.inputs[data.targets == label] for label in range(10)]

    def draw(step: int) -> Batch:
        labels = torch.randint(10, (32,))
        labels[:20] = step // 5 % 10  # most of one class, for five steps
        return torch.stack([of_class[label][torch.randint(len(of_class[label]), ())] for label in labels]), labels

    return Training(Plain(mlp(depth=3), classes, partial(optim.SGD, lr=0.02, momentum=0.5)), stream(draw), 600)


# Recurrent nets that are held


@healthy("LSTM over characters, SGD at 10, clipped")
def lstm_clipped() -> Training:
    module = Plain(Recurrent(64, 1), classes, partial(optim.SGD, lr=10.0))
    return Training(module, stream(characters(8)), 500, {"gradient_clip_val": 0.25})


@healthy("GRU, adding problem, clipped")
def adding() -> Training:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(2, 48, batch_first=True), nn.Linear(48, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.gru(x)[0][:, -1])  # type: ignore[no-any-return]  # a module gives Any

    return Training(Plain(Sum(), squared, partial(optim.Adam, lr=5e-3)), stream(sums_of_two(20, 64)), 600, CLIPPED)


@healthy("forecast, longer sequences and more noise by and by")
def curriculum() -> Training:
    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.RNN(1, 32, batch_first=True), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])  # type: ignore[no-any-return]  # a module gives Any

    def draw(step: int) -> Batch:
        inputs, targets = waves(10 + step // 20)(step)
        return inputs + step / 3000 * torch.randn_like(inputs), targets

    return Training(Plain(Forecast(), squared, partial(optim.Adam, lr=2e-3)), stream(draw), 600, CLIPPED)


# Experts that are balanced


@healthy("experts, balanced by a loss")
def balanced() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[1]) + 0.1 * net[0].balance

    net = nn.Sequential(Experts(8, 4))
    return Training(Plain(net, loss, partial(optim.Adam, lr=5e-3)), stream(groups()), 600)


@healthy("experts, noise on the router that falls, and a capacity")
def noisy_experts() -> Training:
    class Calmed(Plain):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            experts: Any = self.net[2]
            experts.noise = max(0.0, 1 - batch_idx / 400)

    def loss(net: Any, batch: Any) -> Tensor:
        return classes(net, batch) + 0.02 * net[2].balance

    net = nn.Sequential(Patches(32), nn.LayerNorm(32), Experts(32, 32, capacity=1.5), nn.Flatten(), nn.Linear(512, 10))
    return Training(Calmed(net, loss, partial(optim.Adam, lr=2e-3)), stream(images()), 500)


# Half precision that is held


@healthy("ViT, float16 and a GradScaler that begins too high")
def scaled() -> Training:
    options = autocast_to_half(init_scale=2.0**24, growth_interval=60)
    return Training(Plain(vit(2), classes, partial(optim.Adam, lr=2e-3)), stream(images()), 400, options)


@healthy("GPT over characters, bfloat16, four rows")
def brain_floats() -> Training:
    module = Plain(transformer(2, norm_first=True), classes, partial(optim.AdamW, lr=3e-3))
    return Training(module, stream(characters(4)), 500, {"precision": "bf16-mixed", **CLIPPED})


# Losses that do not say how good a model is


@healthy("policy gradient, returns as they are")
def policy() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        states, actions, returns = batch
        logits, values = net(states)
        chosen = logits.log_softmax(-1).gather(1, actions[:, None]).squeeze(1)
        return -(chosen * (returns - values.detach())).mean() + F.mse_loss(values, returns)

    net = Policy()
    games = DataLoader(Episodes(net), batch_size=None)
    return Training(Plain(net, loss, partial(optim.Adam, lr=3e-3)), games, 250, falls=False)


@healthy("Q-learning, a target that follows")
def q_learning() -> Training:
    net = perceptron(4, 128, 128, 2)
    module = Following(net, None, partial(optim.Adam, lr=1e-3))
    return Training(module, DataLoader(Moves(net), batch_size=None), 500, falls=False)


@healthy("GAN of two moons")
def gan() -> Training:
    adam = partial(optim.Adam, lr=1e-3, betas=(0.5, 0.999))
    module = Adversarial(perceptron(8, 64, 64, 2), perceptron(2, 64, 64, 1), (8,), ORIGINAL, adam)
    return Training(module, loader(moons(), size=64), 1000, falls=False)


@healthy("critic with a penalty, digits")
def critic() -> Training:
    adam = partial(optim.Adam, lr=5e-4, betas=(0.0, 0.9))
    critic = perceptron(64, 96, 96, 1, activation=nn.SiLU)
    module = Adversarial(perceptron(16, 96, 64), critic, (16,), CRITIC, adam, rounds=2, penalty=10.0)
    return Training(module, loader(rows(), size=32), 600, falls=False)


@healthy("diffusion, eight rows a step")
def diffusion() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        time, noise = torch.rand(len(batch[0])), torch.randn_like(batch[0])
        angle = time[:, None] * math.pi / 2
        return F.mse_loss(net(angle.cos() * batch[0] + angle.sin() * noise, 1000 * time), noise)

    return Training(Plain(Timed(64), loss, partial(optim.AdamW, lr=1e-3)), loader(2 * rows() - 1, size=8), 600)


@healthy("VAE, four rows a step, weight of the divergence that goes up and down")
def variational() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        net.step = getattr(net, "step", 0) + 1
        made, mean, log_variance = net(batch[0])
        away = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return (
            F.binary_cross_entropy(made, batch[0], reduction="sum") / len(batch[0])
            + min(1.0, net.step % 200 / 100) * away
        )

    return Training(Plain(Variational(), loss, partial(optim.Adam, lr=2e-3)), loader(rows(), size=4), 600)


@healthy("masked characters, one of eight")
def masked() -> Training:
    tokens, count = windows(24)

    def loss(net: Any, batch: Any) -> Tensor:
        hidden = torch.rand(batch[0].shape) < 0.125
        hidden[:, 0] = True
        outputs = net(batch[0].masked_fill(hidden, count))
        return F.cross_entropy(outputs[hidden], batch[0][hidden])

    layer = nn.TransformerEncoderLayer(48, 4, 96, 0.1, batch_first=True)
    net = nn.Sequential(nn.Embedding(count + 1, 48), nn.TransformerEncoder(layer, 2), nn.Linear(48, count))
    return Training(Plain(net, loss, partial(optim.AdamW, lr=2e-3)), loader(tokens, size=8), 500)
