"""What the network is, how its weights are made, what stands beside it and what runs it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from combinations.case import Case, Circumstance, Student, made_by, nothing, one_of
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint
from toys import IS_OLD_TORCH


def tokens(pictures: Tensor) -> Tensor:
    """Pictures as six tokens of width 8."""
    return pictures.permute(0, 2, 1, 3).flatten(2)


def padding(pictures: Tensor) -> Tensor:
    """True where a token is padding: another length for each row."""
    lengths = torch.arange(len(pictures)) % 4 + 3
    return torch.arange(6) >= lengths[:, None]


def of_network(make: Callable[[], nn.Module]) -> Circumstance:
    @one_of("network")
    def circumstance(case: Case) -> None:
        case.net = make

    return circumstance


class Net(nn.Module):
    """Base of the networks: `block` is what checkpoints and compilers are put around, `linear` what weights are of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear: nn.Module = nn.Linear(8, 8)
        self.block: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.out = nn.Linear(8, 3)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.out(self.block(self.linear(tokens(pictures))).mean(1))


layers_in_a_row = of_network(Net)


@one_of("network")
def in_place_ReLU_dropout_and_batch_norm(case: Case) -> None:
    def make() -> Net:
        net = Net()
        net.block = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Tanh())
        return net

    case.net = make


class Convolutional(Net):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Conv2d(2, 4, 3)
        self.block = nn.Sequential(nn.BatchNorm2d(4), nn.Flatten(2), nn.ReLU(inplace=True))

    def forward(self, pictures: Tensor) -> Tensor:
        return self.out(self.block(self.linear(pictures)).flatten(1)[:, :8])


@one_of("network")
def convolutions_and_a_view_changed_in_place(case: Case) -> None:
    case.net = Convolutional
    # A checkpointed block has a wrapper.
    case.changed_later |= {("grad_output", f"net.block{wrapper}.1") for wrapper in ("", ".module")}


class Encoder(Net):
    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=norm_first)
        self.block = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.block(self.linear(tokens(pictures)), src_key_padding_mask=padding(pictures))
        return self.out(x[:, 0])


a_transformer_encoder_with_padding = of_network(lambda: Encoder(norm_first=False))
a_pre_norm_transformer_encoder_with_padding = of_network(lambda: Encoder(norm_first=True))


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 8, batch_first=True)

    def forward(self, pictures: Tensor) -> Tensor:
        x, (last, _) = self.rnn(self.linear(tokens(pictures)))
        return self.out(self.block(x).mean(1) + last[0])


a_recurrent_network = of_network(Recurrent)


class Shared(Net):
    """Calls one block three times; its last weight is also that of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.linear.weight  # type: ignore[assignment]  # a parameter

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.linear(tokens(pictures))
        for _ in range(3):
            x = self.block(x)
        return self.out(self.tied(x).mean(1))


tied_weights_and_a_block_called_three_times = of_network(Shared)


@dataclass
class Parts:
    left: Tensor
    right: Tensor


class Returns(nn.Module):
    """Returns what it is told to, called with keyword arguments only."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, *, x: Tensor, scale: float) -> Any:
        left, right = x * scale, x + 1
        if self.kind == "dataclass":
            return Parts(left, right)
        return {"dict": {"left": left, "right": [right]}, "tuple": (left, None, right), "None": None}[self.kind]


class Nested(Net):
    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.ModuleDict({kind: Returns(kind) for kind in ("dict", "tuple", "dataclass", "None")})

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.block(self.linear(tokens(pictures)))
        as_dict = self.kinds["dict"](x=x, scale=2.0)
        left, _, right = self.kinds["tuple"](x=as_dict["left"], scale=0.5)
        parts = self.kinds["dataclass"](x=left + as_dict["right"][0], scale=1.0)
        self.kinds["None"](x=right, scale=1.0)
        return self.out((parts.left * parts.right).mean(1))


modules_that_return_all_kinds_of_things = of_network(Nested)


class Lazy(Net):
    def __init__(self) -> None:
        super().__init__()
        self.late = nn.LazyLinear(8)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.out(self.block(self.late(self.linear(tokens(pictures)))).mean(1))


a_lazy_layer = of_network(Lazy)


class Straight(torch.autograd.Function):
    """Rounds forward, and lets the gradient through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 0.5


class Rounds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Straight.apply(x)  # type: ignore[no-any-return]  # torch has no types for it


class Halves(nn.Module):
    """Returns two views of what it is given."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., :4], x[..., 4:]


class Views(Net):
    def __init__(self) -> None:
        super().__init__()
        self.rounds, self.halves = Rounds(), Halves()

    def forward(self, pictures: Tensor) -> Tensor:
        left, right = self.halves(self.rounds(self.linear(tokens(pictures))))
        left.mul_(2.0).relu_()
        return self.out(self.block(torch.cat([left, right], -1)).mean(1))


@one_of("network")
def a_custom_function_and_views_changed_in_place(case: Case) -> None:
    case.net = Views
    case.changed_later.add(("grad_output", "net.halves"))  # torch sends it elsewhere, see docs/limits.md


class Threaded(Net):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.linear(tokens(pictures))
        found: dict[str, Tensor] = {}
        mode = torch.is_grad_enabled()
        autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

        def work(name: str, layer: nn.Module) -> None:
            with torch.set_grad_enabled(mode), torch.autocast("cpu", autocast[1], enabled=autocast[0]):
                found[name] = layer(x)

        threads = [threading.Thread(target=work, args=each) for each in (("left", self.left), ("right", self.right))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.out(self.block(found["left"] * found["right"]).mean(1))


layers_called_in_threads = of_network(Threaded)


class Idle(Net):
    """One layer is frozen, one is never called, and one gives what nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear.requires_grad_(False)
        self.never, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.linear(tokens(pictures))
        self.unused(x)
        return self.out(self.block(x).mean(1))


layers_frozen_unused_and_never_called = of_network(Idle)


class Jagged(Net):
    """Layers that get nested tensors: rows of unequal length."""

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.linear(tokens(pictures))
        rows = torch.nested.nested_tensor_from_jagged(x.flatten(0, 1), torch.arange(0, 6 * len(x) + 1, 6))
        return self.out(self.block(rows).values().unflatten(0, (-1, 6)).mean(1))


nested_tensors = of_network(Jagged)


class Embeds(Net):
    """Looks up vectors, with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)

    def forward(self, pictures: Tensor) -> Tensor:
        found = self.embedding(tokens(pictures).detach().float().mul(3).long().clamp(0, 9).sum(-1) % 10)
        return self.out(self.block(self.linear(tokens(pictures)) + found).mean(1))


an_embedding_of_integers = of_network(Embeds)


# How weights are made.


weights_as_they_are = nothing("weights")


def of_the_linear(change: Callable[[nn.Module], Any], is_defined: bool = False) -> Circumstance:
    """A change of the first layer of the network, whose weight then has a value of its own or not."""

    @one_of("weights")
    def circumstance(case: Case) -> None:
        case.changes.append(lambda model: change(model.net.linear))
        if not is_defined:
            case.not_defined.add("net.linear.weight")

    return circumstance


class Noisy(nn.Module):
    """Adds noise at each call, in training and evaluation."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight + 0.01 * torch.randn_like(weight)


class Counting(nn.Module):
    """Depends on how often it was called."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, weight: Tensor) -> Tensor:
        self.calls += 1
        return weight * (1 + 0.01 * self.calls.detach())


def computed_by(part: type[nn.Module]) -> Circumstance:
    return of_the_linear(lambda linear: parametrize.register_parametrization(linear, "weight", part()))


weights_with_noise_at_each_call = computed_by(Noisy)


weights_that_count_their_calls = computed_by(Counting)


class FakeQuantized(nn.Module):
    """Rounds to 15 levels between extremes that it keeps a moving average of, as observers do."""

    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.ones(()))

    def forward(self, weight: Tensor) -> Tensor:
        self.largest.mul_(0.9).add_(0.1 * weight.detach().abs().max())
        step = self.largest.clone() / 7
        rounded = (weight / step).round().clamp(-7, 7) * step
        return weight + (rounded - weight).detach()


weights_quantized_with_an_observer = computed_by(FakeQuantized)


weights_under_spectral_norm = of_the_linear(parametrizations.spectral_norm)
weights_under_weight_norm = of_the_linear(parametrizations.weight_norm)
pruned_weights = of_the_linear(lambda linear: prune.random_unstructured(linear, "weight", amount=0.4), is_defined=True)


# What stands beside the network.


the_network_alone = nothing("beside")


def with_teacher(norm_first: bool) -> Circumstance:
    def add(model: Student) -> None:
        model.teacher = Encoder(norm_first).eval().requires_grad_(False)
        model.teacher.train = lambda mode=True: model.teacher  # type: ignore[method-assign,assignment,return-value]  # stays in evaluation

    return made_by("beside", add)


a_frozen_teacher_in_evaluation_mode = with_teacher(norm_first=False)
a_frozen_pre_norm_teacher_in_evaluation_mode = with_teacher(norm_first=True)


@one_of("beside")
def a_frozen_layer_in_evaluation_mode(case: Case) -> None:
    def freeze(model: Student) -> None:
        block = model.net.block
        block.eval().requires_grad_(False)
        block.train = lambda mode=True: block  # type: ignore[assignment,method-assign]  # stays in evaluation

    case.changes.append(freeze)


# What runs the network.


plain_calls = nothing("inside")


class Recomputed(nn.Module):
    """Runs a module under activation checkpointing."""

    def __init__(self, module: nn.Module, use_reentrant: bool) -> None:
        super().__init__()
        self.module, self.use_reentrant = module, use_reentrant

    def forward(self, x: Tensor, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.module(x, **named)
        if self.use_reentrant:
            return checkpoint(lambda y: self.module(y, **named), x, use_reentrant=True)
        return checkpoint(self.module, x, use_reentrant=False, **named)


def recomputed(use_reentrant: bool) -> Circumstance:
    return made_by("inside", lambda model: setattr(model.net, "block", Recomputed(model.net.block, use_reentrant)))


a_block_recomputed_in_backward = recomputed(use_reentrant=False)
a_block_recomputed_in_backward_reentrantly = recomputed(use_reentrant=True)


def compiled(case: Case) -> None:
    if IS_OLD_TORCH:
        pytest.skip("torch before 2.9 fails to compile some models with hooks")
    case.is_compiled = True


@one_of("inside")
def the_network_compiled_as_a_whole(case: Case) -> None:
    compiled(case)
    case.changes.append(lambda model: setattr(model, "net", torch.compile(model.net, backend="aot_eager")))


@one_of("inside")
def one_block_compiled(case: Case) -> None:
    compiled(case)
    case.changes.append(lambda model: model.net.block.compile(backend="aot_eager"))
