"""Who is updated when: meta-learning, accumulated gradients, adapters, experts, several tasks."""

import math
from copy import deepcopy
from typing import Any

import torch
from benchmarks.programs.other_kinds.common import Classes, Pair, flat_digits, mlp, some_digits
from benchmarks.programs.parts import accuracy, digits, r2
from benchmarks.programs.program import ISSUE, PULL, Learner, case, healthy
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import SGD, AdamW


@case(
    "Truxify 13118",
    ISSUE.format("KanishJebaMathewM/Truxify", 13118),
    kind="meta-learning",
    fault="The inner step writes to .data of a copy.",
    fix="The adapted parameters are new tensors, which depend on those of the model.",
    port="Sines of any phase in place of rides; one inner step.",
    words=("no gradient", ".data", "detach", "does not reach", "not updated", "unchanged", "never"),
)
class Adapting(Learner):
    rate = 0.002
    steps = 400

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(1, 40, 40, 1)

    def batch(self) -> Tensor:
        """Phases of four tasks, and the places of ten known points and ten others of each."""
        return torch.cat([6.3 * torch.rand(4, 1), 10 * torch.rand(4, 20) - 5], 1).unsqueeze(2)

    def after(self, task: Tensor, phase: Tensor) -> Pair:
        """The outputs at the other points after one step at the known ones, and what they should be."""
        truth = (task + phase).sin()
        if self.fixed:
            held = dict(self.net.named_parameters())
            loss = F.mse_loss(functional_call(self.net, held, (task[:10],)), truth[:10])
            slopes = torch.autograd.grad(loss, [*held.values()], create_graph=True)
            held = {name: value - 0.1 * slope for (name, value), slope in zip(held.items(), slopes, strict=True)}
            return functional_call(self.net, held, (task[10:],)), truth[10:]
        adapted = deepcopy(self.net)
        slopes = torch.autograd.grad(F.mse_loss(adapted(task[:10]), truth[:10]), [*adapted.parameters()])
        for value, slope in zip(adapted.parameters(), slopes, strict=True):
            value.data -= 0.1 * slope  # fault
        return adapted(task[10:]), truth[10:]

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return sum(F.mse_loss(*self.after(task[1:], task[0])) for task in batch) / len(batch)

    def score(self) -> float:
        """How much of new sines is explained after one step."""
        with torch.enable_grad():
            pairs = [self.after(task[1:], task[0]) for _ in range(25) for task in self.batch()]
        outputs, truth = (torch.cat(values).detach() for values in zip(*pairs, strict=True))
        return r2(outputs, truth)


@case(
    "torchtitan 3575",
    PULL.format("pytorch/torchtitan", 3575),
    kind="accumulated gradients",
    fault="Gradients are cleared before each part of a batch.",
    fix="After the optimizer's step.",
    port="Digits of 8x8 in 16 parts of four, with SGD in place of AdamW, which hides that gradients are too small.",
    words=("accumulat", "clear", "zero_grad", "micro", "backward"),
)
class LastPart(Learner):
    rate = 0.05
    steps = 150

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.automatic_optimization = False
        images, self.labels = digits(8)
        self.images = images.flatten(1) / 255
        self.net = mlp(64, 64, 10)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), self.rate, momentum=0.9)

    def batch(self) -> Tensor:
        return torch.randint(len(self.images), (16, 4))

    def training_step(self, parts: Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        for part in parts:
            if not self.fixed:
                optimizer.zero_grad()  # fault
            self.manual_backward(F.cross_entropy(self.net(self.images[part]), self.labels[part]) / len(parts))
        optimizer.step()

    def score(self) -> float:
        return accuracy(self.net(self.images), self.labels)


class Adapted(nn.Module):
    """A frozen layer with slots for adapters of a low rank."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(layer.in_features, rank))
        self.lora_b = nn.Parameter(torch.zeros(rank, layer.out_features))

    def clear(self) -> None:
        """Free the slot."""
        self.lora_a.data.zero_()
        self.lora_b.data.zero_()

    def forward(self, inputs: Tensor) -> Any:
        return self.layer(inputs) + inputs @ self.lora_a @ self.lora_b


@case(
    "SkyRL 852",
    PULL.format("NovaSky-AI/SkyRL", 852),
    kind="adapters",
    fault="A slot for an adapter is cleared and used again, without new random numbers in lora_A.",
    fix="lora_A is initialized when a slot is used, and lora_B is zero.",
    port="Two layers of random weights, to which a change of a low rank is learned, in place of a language model; torch"
    " in place of JAX.",
    words=("zero", "no gradient", "gradient is", "init", "unchanged", "constant", "never"),
)
class BothZero(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        base, changed = mlp(16, 32, 8), mlp(16, 32, 8)
        changed.load_state_dict(base.state_dict())
        for layer in (changed[0], changed[2]):
            shape = layer.weight.shape
            layer.weight.data += torch.randn(shape[0], 2) @ torch.randn(2, shape[1]) / 6
        self.wanted = changed.requires_grad_(False)
        self.adapters = nn.ModuleList([Adapted(base[0]), Adapted(base[2])])  # type: ignore[arg-type]  # both are linear
        for adapter in self.adapters:
            adapter.clear()
            if fixed:  # fault
                nn.init.kaiming_uniform_(adapter.lora_a)

    def batch(self) -> Tensor:
        return torch.randn(64, 16)

    def forward(self, inputs: Tensor) -> Any:
        return self.adapters[1](self.adapters[0](inputs).relu())

    def training_step(self, inputs: Tensor, batch_idx: int) -> Tensor:
        return F.mse_loss(self(inputs), self.wanted(inputs))

    def score(self) -> float:
        inputs = torch.randn(1024, 16)
        return r2(self(inputs), self.wanted(inputs))


@case(
    "trl 2201",
    PULL.format("huggingface/trl", 2201),
    kind="mixture of experts",
    fault="The coefficient of the loss that balances the experts is read as 0.",
    fix="It is that of the model's configuration.",
    port="Eight experts, of which each of eight places of clouds needs one, with the best expert of each sample alone,"
    " in place of language models; the router is made with a strong preference for one, and the coefficient is 0.3.",
    words=("expert", "balance", "zero", "weight of 0", "no gradient", "unused", "router", "collapse"),
)
class Unbalanced(Learner):
    rate = 0.01
    steps = 600

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.router = nn.Linear(4, 8)
        nn.init.zeros_(self.router.bias)
        self.router.bias.data[0] = 8.0
        self.experts = nn.ModuleList(nn.Linear(4, 2) for _ in range(8))
        self.places, self.maps = 2 * torch.randn(8, 4), torch.randn(8, 4, 2)
        self.coefficient = 0.3 if fixed else 0.0  # fault

    def batch(self) -> Pair:
        which = torch.randint(8, (128,))
        offsets = torch.randn(128, 4)
        return self.places[which] + 0.5 * offsets, (offsets.unsqueeze(1) @ self.maps[which]).squeeze(1)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        likely = self.router(inputs).softmax(1)
        best = likely.argmax(1)
        outputs = torch.stack([expert(inputs) for expert in self.experts], 1)[torch.arange(len(inputs)), best]
        chosen = likely.gather(1, best.unsqueeze(1))
        return chosen * outputs, 8 * (F.one_hot(best, 8).float().mean(0) * likely.mean(0)).sum()

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        outputs, balance = self(batch[0])
        return F.mse_loss(outputs, batch[1]) + self.coefficient * balance

    def score(self) -> float:
        """How evenly the experts are used: 1 if all are alike, 0 if one does all."""
        inputs = torch.cat([self.batch()[0] for _ in range(8)])
        shares = F.one_hot(self.router(inputs).argmax(1), 8).float().mean(0)
        return torch.special.entr(shares).sum().item() / math.log(8)


@healthy("accumulated digits", "accumulated gradients", 0.9)
class Accumulated(Learner):
    """Four parts of a batch for each step, clipped; a schedule that falls to 0."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 10))

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), 0.005)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps // 4)]

    def batch(self) -> Pair:
        return some_digits(16)

    def training_step(self, batch: Pair, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        schedule: Any = self.lr_schedulers()
        self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]) / 4)
        if batch_idx % 4 == 3:
            self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()

    def score(self) -> float:
        images, labels = flat_digits()
        return accuracy(self.net(images), labels)


@healthy("two tasks with learned weights", "multi-task", 0.8)
class TwoTasks(Learner):
    """Which digit it is and how much ink it has; the weights of both losses are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.which, self.ink = mlp(64, 64), nn.Linear(64, 10), nn.Linear(64, 1)
        self.logs = nn.Parameter(torch.zeros(2))

    def batch(self) -> Pair:
        return some_digits(64)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        seen = self.body(batch[0]).relu()
        ink = F.mse_loss(self.ink(seen).squeeze(1), batch[0].mean(1))
        losses = torch.stack([F.cross_entropy(self.which(seen), batch[1]), ink])
        return ((-self.logs).exp() * losses + self.logs / 2).sum()

    def score(self) -> float:
        images, labels = flat_digits()
        return accuracy(self.which(self.body(images).relu()), labels)


@healthy("balanced experts", "mixture of experts", 0.8)
class Experts(Learner):
    """The best two of six experts for each sample, with noise in the router and a loss that balances them."""

    rate = 0.01
    steps = 500

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(2, 6)
        self.experts = nn.ModuleList(mlp(2, 16, 1) for _ in range(6))

    def batch(self) -> Pair:
        places = 4 * torch.rand(256, 2) - 2
        return places, (2 * places[:, :1]).sin() * places[:, 1:]

    def forward(self, places: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.router(places)
        best = (logits + (torch.randn_like(logits) / 6 if self.training else 0.0)).topk(2, 1).indices
        weights = logits.gather(1, best).softmax(1)
        outputs = torch.stack([expert(places) for expert in self.experts], 1).squeeze(2).gather(1, best)
        shares = F.one_hot(best, 6).float().sum(1).mean(0) / 2
        return (weights * outputs).sum(1, keepdim=True), 6 * (shares * logits.softmax(1).mean(0)).sum()

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        outputs, balance = self(batch[0])
        return F.mse_loss(outputs, batch[1]) + 0.01 * balance

    def score(self) -> float:
        places, wanted = self.batch()
        return r2(self(places)[0], wanted)


@healthy("MAML of sines", "meta-learning", 0.3)
class AdaptingSines(Learner):
    """One inner step on ten points of a sine of any phase; the outer loss is that on ten others, after it."""

    rate = 0.003
    steps = 600

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(1, 40, 40, 1)

    def batch(self) -> Tensor:
        """Four tasks: a phase, and the places of 20 points."""
        return torch.cat([6.3 * torch.rand(4, 1), 10 * torch.rand(4, 20) - 5], 1).unsqueeze(2)

    def after(self, task: Tensor) -> Pair:
        """The outputs at the last ten points, and what they should be."""
        places, truth = task[1:], (task[1:] + task[0]).sin()
        held = dict(self.net.named_parameters())
        loss = F.mse_loss(functional_call(self.net, held, (places[:10],)), truth[:10])
        slopes = torch.autograd.grad(loss, [*held.values()], create_graph=True)
        held = {name: value - 0.1 * slope for (name, value), slope in zip(held.items(), slopes, strict=True)}
        return functional_call(self.net, held, (places[10:],)), truth[10:]

    def training_step(self, tasks: Tensor, batch_idx: int) -> Tensor:
        return torch.stack([F.mse_loss(*self.after(task)) for task in tasks]).mean()

    def score(self) -> float:
        """How much of new sines is explained after one step."""
        with torch.enable_grad():
            pairs = [self.after(task) for _ in range(25) for task in self.batch()]
        outputs, truth = (torch.cat(values).detach() for values in zip(*pairs, strict=True))
        return r2(outputs, truth)


@healthy("adversarial digits", "adversarial training", 0.7)
class Attacked(Classes):
    """Three steps of an attack on each picture, and then one of training on what they give."""

    def attacked(self, images: Tensor, labels: Tensor) -> Tensor:
        moved = (images + 0.1 * (2 * torch.rand_like(images) - 1)).clamp(0, 1)
        with torch.enable_grad():
            for _ in range(3):
                moved.requires_grad_()
                slope = torch.autograd.grad(F.cross_entropy(self.net(moved), labels), moved)[0]
                moved = moved.detach() + 0.05 * slope.sign()
                moved = torch.min(torch.max(moved, images - 0.1), images + 0.1).clamp(0, 1)
        return moved.detach()

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(self.attacked(*batch)), batch[1])

    def score(self) -> float:
        images, labels = flat_digits()
        return accuracy(self.net(self.attacked(images, labels)), labels)
