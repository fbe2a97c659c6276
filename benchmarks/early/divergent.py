"""Thirty trainings that diverge, five of each kind, each with an architecture and a cause of its own.

They were written and committed before a monitor saw any of them.
"""

import math
from functools import partial
from typing import Any

import torch
from benchmarks.early.parts import (
    Batch,
    Experts,
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
from benchmarks.health.data import VOCABULARY
from benchmarks.health.nets import (
    Attention,
    Block,
    Embedding,
    Mean,
    Patches,
    Recurrent,
    cnn,
    mixer,
    mlp,
    resnet,
    transformer,
    vit,
)
from benchmarks.recipes.data import table
from benchmarks.recipes.generative import perceptron, rows
from benchmarks.recipes.recipe import Plain, Training, loader
from torch import Tensor, nn, optim
from torch.nn import functional as F  # noqa: N812  # the usual name

# A rate that becomes too high


@program("rate", "MLP, warm-up that never ends")
def endless_warm_up() -> Training:
    sgd = partial(optim.SGD, lr=1e-3, momentum=0.9)
    return Training(Plain(mlp(nn.ReLU, 64, 2), classes, sgd, rising(lambda step: 1 + step)), stream(images()), 600)


@program("rate", "CNN, warm restarts of which each is four times as high")
def growing_restarts() -> Training:
    def factor(step: int) -> float:
        cycle, within = divmod(step, 120)
        return 4.0**cycle * (1 + math.cos(math.pi * within / 120)) / 2

    sgd = partial(optim.SGD, lr=0.005, momentum=0.9)
    return Training(Plain(cnn(), classes, sgd, rising(factor)), stream(images()), 600)


class RaisesAtPlateau(Plain):
    """Multiplies the rate by 1.5 when the loss has not improved for ten steps, in place of dividing it."""

    best, waited = math.inf, 0

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = float(outputs["loss"])
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        if self.waited == 10:
            self.waited = 0
            for group in self.trainer.optimizers[0].param_groups:
                group["lr"] *= 1.5


@program("rate", "LSTM, raised at a plateau")
def raised_at_plateau() -> Training:
    module = RaisesAtPlateau(Recurrent(), classes, partial(optim.AdamW, lr=0.003))
    return Training(module, stream(characters()), 600)


@program("rate", "regression, decay with a factor above 1")
def growing_decay() -> Training:
    inputs, targets = table("diabetes")
    net = perceptron(inputs.shape[1], 64, 64, 1)
    schedule = partial(optim.lr_scheduler.ExponentialLR, gamma=1.01)
    module = Plain(net, squared, partial(optim.Adam, lr=1e-3), schedule)
    return Training(module, loader(inputs, targets, size=32), 800)


@program("rate", "ResNet, body thawed at the rate of the head")
def thawed() -> Training:
    net = resnet()

    def sgd(_: Any) -> Any:
        head = [*net.get_submodule("head").parameters()]
        body = [weight for name, weight in net.named_parameters() if not name.startswith("head")]
        return optim.SGD([{"params": head}, {"params": body}], lr=0.5, momentum=0.9)

    def schedule(optimizer: Any) -> Any:
        return optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.02 if step < 300 else 4.0])

    return Training(Plain(net, classes, sgd, schedule), stream(images()), 500)


# Attention without a norm of queries and keys


@program("attention", "GPT that copies, warm-up towards a rate of 1")
def gpt_too_fast() -> Training:
    net = transformer(2, norm_first=True)
    schedule = rising(lambda step: ((step + 1) / 1000) ** 2)
    return Training(Plain(net, copied, partial(optim.AdamW, lr=1.0), schedule), stream(repeats(wrong=0.1)), 700)


@program("attention", "norm after the sum, six blocks, rate that grows from step 300")
def deep_post_norm() -> Training:
    blocks = [Block(32, 4, norm_first=False) for _ in range(6)]
    net = nn.Sequential(Patches(32), *blocks, Mean(), nn.Linear(32, 10))
    for module in net.modules():
        if isinstance(module, Attention):
            module.is_causal = False
    schedule = rising(lambda step: min(1.0, (step + 1) / 100) * 1.03 ** max(0, step - 300))
    return Training(Plain(net, classes, partial(optim.Adam, lr=1e-3), schedule), stream(images(16)), 550)


class Sharpened(Attention):
    """Attention whose logits are multiplied by a factor that is learned, as its exponent, without a bound."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.is_causal = False

    def forward(self, x: Tensor) -> Tensor:
        self.scale = self.log_scale.exp()  # type: ignore[assignment]  # a tensor is a factor as well
        return super().forward(x)


@program("attention", "ViT without norms, shared scale of the logits learned fast")
def learned_scale() -> Training:
    net = nn.Sequential(
        nn.Conv2d(1, 32, 2, 2), nn.Flatten(2), Turned(), Sharpened(32, 4), nn.Flatten(), nn.Linear(512, 10)
    )

    def sgd(_: Any) -> Any:
        scale = [weight for name, weight in net.named_parameters() if name.endswith("log_scale")]
        others = [weight for name, weight in net.named_parameters() if not name.endswith("log_scale")]
        return optim.SGD([{"params": scale, "lr": 0.5}, {"params": others, "lr": 0.1}], momentum=0.9)

    schedule = rising(lambda step: (step + 1) / 200)
    return Training(Plain(net, classes, sgd, schedule), stream(images()), 500)


class Turned(nn.Module):
    """Channels last."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Residual(nn.Module):
    """A perceptron behind a norm, with a way around it."""

    def __init__(self, norm: nn.Module, width: int) -> None:
        super().__init__()
        self.norm, self.layers = norm, perceptron(width, 2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(self.norm(x))  # type: ignore[no-any-return]  # a module gives Any


class LinearAttention(nn.Module):
    """Attention by sums, whose denominator is a sum of products that may come near 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x)
        query, key, value = 1 + self.q_proj(seen), 1 + self.k_proj(seen), self.v_proj(seen)
        whole = torch.einsum("btd,bd->bt", query, key.sum(1)).unsqueeze(-1)
        return x + query @ (key.transpose(1, 2) @ value) / whole


@program("attention", "linear attention, denominator without a bound")
def linear_attention() -> Training:
    blocks = [nn.Sequential(LinearAttention(32), Residual(nn.LayerNorm(32), 32)) for _ in range(2)]
    net = nn.Sequential(Patches(32), *blocks, Mean(), nn.Linear(32, 10))
    schedule = rising(lambda step: 1.01 ** max(0, step - 300))
    return Training(Plain(net, classes, partial(optim.Adam, lr=3e-3), schedule), stream(images()), 600)


@program("attention", "one wide head, logits not divided, rate doubled every 60 steps")
def undivided() -> Training:
    net = transformer(2, norm_first=True, width=64, heads=1)
    for module in net.modules():
        if isinstance(module, Attention):
            module.scale = 1.0
    sgd = partial(optim.SGD, lr=0.05, momentum=0.9)
    return Training(Plain(net, classes, sgd, rising(lambda step: 2.0 ** (step // 60))), stream(characters()), 600)


# Half precision that overflows


class Sums(nn.Module):
    """Reads a sequence by its sums so far, in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        sums = self.embed(x).relu().half().cumsum(1)
        return self.head(sums[:, -1].float() / x.shape[1])  # type: ignore[no-any-return]  # a module gives Any


@program("half", "sums over longer and longer sequences in float16")
def sums_in_half() -> Training:
    def draw(step: int) -> Batch:
        values = 100 * torch.rand(16, 20 + 4 * step, 1)
        return values, values.mean(1) / 100

    return Training(Plain(Sums(), squared, partial(optim.Adam, lr=1e-3)), stream(draw), 700)


class Gated(nn.Module):
    """A gated layer with a way around it, whose products are float16."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down((self.gate(x).half() * self.up(x).half()).float())  # type: ignore[no-any-return]  # untyped call


@program("half", "gated layers without norms, products in float16, rate that grows")
def gated_in_half() -> Training:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *(Gated(32) for _ in range(3)), nn.Linear(32, 10))
    schedule = rising(lambda step: 1.005**step)
    return Training(Plain(net, classes, partial(optim.Adam, lr=1e-3), schedule), stream(images()), 600)


class DoublesScale(Plain):
    """Weights in float16, and a scale of the loss that doubles every 25 steps whatever the gradients are."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scale = 2.0 ** (4 + batch_idx // 25)
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(self.net, batch)
        self.manual_backward(loss * scale)
        for weight in self.net.parameters():
            if weight.grad is not None:
                weight.grad /= scale
        optimizer.step()
        return loss.detach()


@program("half", "weights in float16, scale of the loss that never looks back")
def scale_overflows() -> Training:
    draw = images()

    def halves(step: int) -> Batch:
        inputs, targets = draw(step)
        return inputs.half(), targets

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).float(), batch[1])

    net = cnn(channels=(8, 8, 16, 16)).half()
    return Training(DoublesScale(net, loss, partial(optim.SGD, lr=0.05)), stream(halves), 600)


@program("half", "softmax by hand in float16")
def softmax_in_half() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        powers = net(batch[0]).half().exp()
        return -(powers.float().gather(1, batch[1][:, None]).squeeze(1) / powers.sum(1).float()).log().mean()

    return Training(Plain(mixer(2), loss, partial(optim.Adam, lr=5e-3)), stream(images()), 600)


class StandardizedInHalf(nn.Module):
    """Standardizes each row by a mean and a mean square that are float16."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.half()
        mean, square = x.mean(1, keepdim=True), x.square().mean(1, keepdim=True)
        return ((x - mean) / (square - mean.square() + 1e-3).sqrt()).float()


@program("half", "variance by hand in float16, of a series with a trend")
def variance_in_half() -> Training:
    draw = waves(33)

    def draw_level(step: int) -> Batch:
        values = draw(step)[0].squeeze(-1)
        return 3 * values[:, :-1] + 0.2 * step, values[:, -1:]

    net = nn.Sequential(StandardizedInHalf(), perceptron(32, 64, 64, 1))
    return Training(Plain(net, squared, partial(optim.AdamW, lr=1e-3)), stream(draw_level), 800)


# Batches that are bad


@program("batch", "regression, one batch of outliers of 10,000")
def outliers() -> Training:
    inputs, targets = table("diabetes")

    def draw(step: int) -> Batch:
        picked = torch.randint(len(inputs), (32,))
        return inputs[picked] * (1e4 if step == 333 else 1.0), targets[picked]

    net = perceptron(inputs.shape[1], 64, 64, 1)
    return Training(Plain(net, squared, partial(optim.SGD, lr=0.01, momentum=0.9)), stream(draw), 450)


@program("batch", "CNN, a row of NaN from the second shard on")
def missing_rows() -> Training:
    draw = images()

    def broken(step: int) -> Batch:
        inputs, targets = draw(step)
        if step >= 270 and step % 9 == 0:
            inputs = inputs.clone()
            inputs[3] = math.nan
        return inputs, targets

    return Training(Plain(cnn(norm=True), classes, partial(optim.Adam, lr=1e-3)), stream(broken), 400)


@program("batch", "autoencoder, pixels from 0 to 255 in the second shard")
def unnormalized_shard() -> Training:
    pixels = rows()

    def draw(step: int) -> tuple[Tensor]:
        return (pixels[torch.randint(len(pixels), (32,))] * (255.0 if step >= 310 else 1.0),)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[0])

    net = nn.Sequential(perceptron(64, 64, 8), perceptron(8, 64, 64))
    return Training(Plain(net, loss, partial(optim.Adam, lr=1e-3)), stream(draw), 450)


@program("batch", "forecast, a sensor that drifts by 2 % a step")
def drifting_sensor() -> Training:
    draw = waves(32)

    def drifting(step: int) -> Batch:
        inputs, targets = draw(step)
        factor = 1.02 ** max(step - 200, 0)
        return inputs * factor, targets * factor

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.gru(x)[0])  # type: ignore[no-any-return]  # a module gives Any

    return Training(Plain(Forecast(), squared, partial(optim.Adam, lr=3e-3)), stream(drifting), 500)


@program("batch", "ViT, more and more wrong labels")
def wrong_labels() -> Training:
    draw = images()

    def shuffled(step: int) -> Batch:
        inputs, targets = draw(step)
        wrong = torch.rand(len(targets)) < (step - 250) / 200
        return inputs, torch.where(wrong, torch.randint(10, targets.shape), targets)

    return Training(Plain(vit(2), classes, partial(optim.AdamW, lr=1e-3)), stream(shuffled), 500)


# Recurrent nets that explode


class Last(nn.Module):
    """A head on the last state of a recurrent layer."""

    def __init__(self, layer: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])  # type: ignore[no-any-return]  # a module gives Any


@program("recurrent", "ReLU cells from the identity, adding problem")
def identity_cells() -> Training:
    layer = nn.RNN(2, 64, nonlinearity="relu", batch_first=True)
    nn.init.eye_(layer.weight_hh_l0)
    nn.init.normal_(layer.weight_ih_l0, std=0.05)
    nn.init.zeros_(layer.bias_ih_l0)
    nn.init.zeros_(layer.bias_hh_l0)
    schedule = rising(lambda step: 1.015**step)
    return Training(
        Plain(Last(layer, 64, 1), squared, partial(optim.SGD, lr=2e-5, momentum=0.9), schedule),
        stream(sums_of_two(100)),
        600,
    )


@program("recurrent", "LSTM over characters, SGD to 40 without a clip")
def lstm_without_clip() -> Training:
    sgd = partial(optim.SGD, lr=40.0, momentum=0.5)
    schedule = rising(lambda step: min(1.0, ((step + 1) / 400) ** 2))
    return Training(Plain(Recurrent(64, 1), classes, sgd, schedule), stream(characters()), 450)


class Unrolled(nn.Module):
    """Goes on alone from the first value of a sequence: each output is the next input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(1, 48, nonlinearity="relu"), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        state, value, values = x.new_zeros(len(x), 48), x[:, 0], []
        for at in range(x.shape[1]):
            state = self.cell(x[:, at] if at < 5 else value, state)
            value = self.head(state)
            values.append(value)
        return torch.stack(values, 1)


@program("recurrent", "own outputs as inputs, for longer and longer")
def longer_and_longer() -> Training:
    def draw(step: int) -> Batch:
        values = (0.5 + torch.rand(32, 1)) * 0.95 ** torch.arange(11 + step // 8)
        return values[:, :-1, None], values[:, 1:, None]

    schedule = rising(lambda step: 1.01**step)
    return Training(Plain(Unrolled(), squared, partial(optim.Adam, lr=1e-3), schedule), stream(draw), 600)


class StateSpace(nn.Module):
    """A linear recurrence with an eigenvalue for each state, which nothing keeps below 1."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(inputs, width), nn.Linear(width, 1)
        self.eigenvalues = nn.Parameter(torch.linspace(0.5, 0.97, width))

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), len(self.eigenvalues))
        for given in self.project(x).unbind(1):
            state = self.eigenvalues * state + given
        return self.head(state)  # type: ignore[no-any-return]  # a module gives Any


@program("recurrent", "state space with free eigenvalues, 150 steps")
def free_eigenvalues() -> Training:
    def draw(step: int) -> Batch:
        values = torch.randn(32, 150, 1)
        return values, values.sum(1) / 12

    schedule = rising(lambda step: (step + 1) / 50)
    return Training(Plain(StateSpace(1, 32), squared, partial(optim.Adam, lr=0.01), schedule), stream(draw), 600)


class Repeated(nn.Module):
    """One block applied twenty times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        state = self.embed(x.flatten(1))
        for _ in range(20):
            state = state + 0.2 * self.block(state).relu()
        return self.head(state)  # type: ignore[no-any-return]  # a module gives Any


@program("recurrent", "one block twenty times, with a way around")
def repeated_block() -> Training:
    schedule = rising(lambda step: 1.01**step)
    return Training(Plain(Repeated(48), classes, partial(optim.SGD, lr=2e-3), schedule), stream(images()), 600)


# Routers that collapse


class Reader(nn.Module):
    """Embedding, attention, experts with a router in float16, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attend = Embedding(32), Attention(32, 4)
        self.norm, self.experts = nn.LayerNorm(32), Experts(32, 32)
        self.experts.in_half = True
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.attend(x)
        return self.head(self.experts(self.norm(x)))  # type: ignore[no-any-return]  # a module gives Any


def router_first(net: nn.Module, rate: float, of_router: float) -> Any:
    """Make Adam with a rate of its own for routers."""
    routers = [weight for name, weight in net.named_parameters() if "router" in name]
    others = [weight for name, weight in net.named_parameters() if "router" not in name]
    return lambda _: optim.Adam([{"params": others}, {"params": routers, "lr": of_router}], lr=rate)


@program("router", "language model, router in float16 whose rate grows")
def router_too_fast() -> Training:
    net = Reader()

    def schedule(optimizer: Any) -> Any:
        return optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1.0, lambda step: 1.03 ** max(0, step - 300)])

    return Training(Plain(net, copied, router_first(net, 3e-3, 3e-3), schedule), stream(repeats(wrong=0.1)), 700)


@program("router", "balance of the wrong sign, with a weight that grows")
def balance_of_wrong_sign() -> Training:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = Experts(8, 4, 8, hidden=16)

        def forward(self, x: Tensor) -> Tensor:
            return self.experts(x)  # type: ignore[no-any-return]  # a module gives Any

    def loss(net: Any, batch: Any) -> Tensor:
        made = net(batch[0])
        net.step = getattr(net, "step", 0) + 1
        extra = -0.05 * max(0, net.step - 300) * net.experts.balance
        return F.mse_loss(made, batch[1]) + extra - extra.detach()

    return Training(Plain(Mixed(), loss, partial(optim.Adam, lr=0.01)), stream(groups(128, count=8)), 600)


class Offset(Plain):
    """Balances by an offset on the router's choice, as DeepSeek does, from step 250 on with the wrong sign."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        experts: Any = self.net.experts
        sign = 1.0 if batch_idx < 250 else -1.0
        experts.offset -= sign * 0.01 * (experts.shares - 1 / len(experts.experts)).sign()


class Classified(nn.Module):
    """Patches, experts for each, their mean and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.experts = nn.Conv2d(1, 32, 2, 2), Experts(32, 32, capacity=1.25)
        self.head = nn.Linear(32 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.experts(self.patches(x).flatten(2).transpose(1, 2)).flatten(1))  # type: ignore[no-any-return]  # a module gives Any


@program("router", "offsets that balance, of the wrong sign")
def offset_of_wrong_sign() -> Training:
    return Training(Offset(Classified(), classes, partial(optim.Adam, lr=2e-3)), stream(images()), 500)


class Jittered(Plain):
    """Raises the noise on the router's logits, which should fall."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        experts: Any = self.net[0]
        experts.noise = 0.1 * max(0, batch_idx - 300)


@program("router", "noise of the router that grows")
def noisy_router() -> Training:
    module = Jittered(nn.Sequential(Experts(8, 4, hidden=16)), squared, partial(optim.Adam, lr=0.01))
    return Training(module, stream(groups()), 600)


@program("router", "router by SGD, warm-up that never ends")
def router_never_warm() -> Training:
    net = nn.Sequential(Experts(8, 4))

    def sgd(_: Any) -> Any:
        routers = [weight for name, weight in net.named_parameters() if "router" in name]
        others = [weight for name, weight in net.named_parameters() if "router" not in name]
        return optim.SGD([{"params": others}, {"params": routers}], lr=0.05, momentum=0.9)

    def schedule(optimizer: Any) -> Any:
        return optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1.0, lambda step: 1.025**step])

    return Training(Plain(net, squared, sgd, schedule), stream(groups()), 600)
