"""Does what the advice of an alarm says, where a script can: keyed on the words of the advice, never on the program.

Of an advice that names several things, the first that a script can do is done: "Lower the learning rate, or clip
gradients and warm it up" is a tenth of the rate. Where the advice has a number, that is taken. What only a person can
do ("look for detach()") is left.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.programs.parts import accuracy, bit_accuracy, standardized
from benchmarks.programs.trial import Program
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Optimizer

NEAR = 0.1
"""A repaired program scores at least the fix's score less this."""

WAY = 2 / 3
"""And goes at least this share of the way from the fault's score to the fix's."""

BOUNDED = (nn.Sigmoid, nn.Tanh, nn.Softmax, nn.Softsign)
ACTIVATIONS = {"softmax": nn.Softmax, "sigmoid": nn.Sigmoid, "relu": nn.ReLU, "tanh": nn.Tanh}
WEIGHTED = (nn.Linear, nn.Conv2d)

Repair = Callable[[Program, re.Match[str], str], Program | None]


def is_repaired(wrong: float, right: float, score: float) -> bool:
    """Return whether a score is near the fix's, given the scores of the fault and of the fix."""
    return score >= right - NEAR and (wrong == -math.inf or score >= wrong + WAY * (right - wrong))


def followed(program: Program, advice: str, module: str) -> tuple[str, Program] | None:
    """Do what an advice says.

    Args:
        program: as the fault is built; its net may change.
        advice: of the alarm.
        module: the layer that the alarm names, as `net.2`; "" for none.

    Returns:
        The words that were followed, and the changed program; None if no script can follow it.
    """
    found = [(match.start(), place) for place, (words, _) in enumerate(REPAIRS) if (match := words.search(advice))]
    for _, place in sorted(found):
        words, repair = REPAIRS[place]
        match = words.search(advice)
        assert match is not None
        changed = repair(program, match, module)
        if changed is not None:
            return match.group(0), changed
    return None


# Rates


def _with_group(program: Program, name: str, value: Callable[[Any], float]) -> Program:
    """Set an option of the optimizer's groups to what the function makes of it."""

    def changed(parameters: Iterable[nn.Parameter]) -> Optimizer:
        optimizer = program.optimizer(parameters)
        for group in optimizer.param_groups:
            group[name] = value(group[name])
        return optimizer

    return replace(program, optimizer=changed)


def _scaled_rate(program: Program, factor: float) -> Program:
    return _with_group(program, "lr", lambda rate: rate * factor)


def _named_rate(program: Program, match: re.Match[str], module: str) -> Program:
    return _with_group(program, "lr", lambda rate: float(match["rate"]))


def _named_epsilon(program: Program, match: re.Match[str], module: str) -> Program:
    return _with_group(program, "eps", lambda eps: float(match["eps"]))


def _named_factor(program: Program, match: re.Match[str], module: str) -> Program:
    factor = float(match["factor"])
    return _scaled_rate(program, factor if match["way"].lower() == "multiply" else 1 / factor)


def _rate(factor: float, program: Program, match: re.Match[str], module: str) -> Program:
    return _scaled_rate(program, factor)


def _clipped(program: Program, match: re.Match[str], module: str) -> Program | None:
    return None if program.clip is not None else replace(program, clip=1.0)


def _usual_step(program: Program, match: re.Match[str], module: str) -> Program | None:
    """Clear the gradients before the backward pass, as automatic optimization does."""
    return None if program.step is None else replace(program, step=None)


# Inputs and targets


def _scaled_input(program: Program, match: re.Match[str], module: str) -> Program | None:
    """Standardize each column of a table, and pictures as a whole."""
    given = program.inputs
    if not given.is_floating_point():
        return None
    scaled = standardized(given) if given.dim() == 2 else (given - given.mean()) / given.std()
    return replace(program, inputs=scaled)


def _scaled_targets(program: Program, match: re.Match[str], module: str) -> Program | None:
    if not program.targets.is_floating_point():
        return None
    return replace(program, targets=standardized(program.targets))


def _scaled_both(program: Program, match: re.Match[str], module: str) -> Program | None:
    scaled = _scaled_targets(program, match, module)
    return None if scaled is None else _scaled_input(scaled, match, module)


def _same_shape(program: Program, match: re.Match[str], module: str) -> Program | None:
    return replace(program, targets=program.targets.unsqueeze(1)) if program.targets.dim() == 1 else None


# The output and the loss


def _last(program: Program, kind: type[nn.Module]) -> int | None:
    """Return the place of the last layer if it is of this kind."""
    place = len(program.net) - 1  # type: ignore[arg-type]  # a Sequential
    return place if isinstance(program.net[place], kind) else None  # type: ignore[index]  # a Sequential


def _removed(program: Program, match: re.Match[str], module: str) -> Program | None:
    place = _last(program, ACTIVATIONS[match["what"].lower()])
    if place is None:
        return None
    score = program.score
    if program.loss is F.binary_cross_entropy_with_logits and score is bit_accuracy:
        score = _of_logits
    return replace(program, net=program.net[:place], score=score)  # type: ignore[index]  # a Sequential


def _of_logits(outputs: Tensor, targets: Tensor) -> float:
    return bit_accuracy(outputs.sigmoid(), targets)


def _sigmoid(program: Program, match: re.Match[str], module: str) -> Program | None:
    place = _last(program, nn.Softmax)
    if place is None:
        return None
    program.net[place] = nn.Sigmoid()  # type: ignore[index]  # a Sequential
    return program


def _independent(program: Program, match: re.Match[str], module: str) -> Program | None:
    """Give each label a logit of its own."""
    place = _last(program, nn.Softmax)
    if place is None:
        return None
    loss, score = F.binary_cross_entropy_with_logits, _of_logits
    return replace(program, net=program.net[:place], loss=loss, score=score)  # type: ignore[index]  # a Sequential


def _classes(program: Program, match: re.Match[str], module: str) -> Program | None:
    """Give the net an output for each class, and `cross_entropy` the class numbers."""
    labels = program.targets.long().flatten()
    count = int(labels.max()) + 1
    if count < 3 or len(labels) != len(program.inputs):
        return None
    layers = list(program.net)  # type: ignore[call-overload]  # a Sequential
    last = max(at for at, layer in enumerate(layers) if isinstance(layer, nn.Linear))
    head = nn.Linear(layers[last].in_features, count)
    return replace(
        program,
        net=nn.Sequential(*layers[:last], head),
        loss=F.cross_entropy,
        targets=labels,
        score=accuracy,
        answers=None,
    )


def _log_softmax(program: Program, match: re.Match[str], module: str) -> Program:
    return replace(program, net=nn.Sequential(*program.net, nn.LogSoftmax(1)))  # type: ignore[misc]  # a Sequential


# Layers


def _initialized(program: Program, match: re.Match[str], module: str) -> Program:
    """Initialize by He before a ReLU and its kind, by Xavier before what is bounded and before the output."""
    layers = list(program.net)  # type: ignore[call-overload]  # a Sequential
    for layer, after in zip(layers, [*layers[1:], None], strict=True):
        if isinstance(layer, WEIGHTED):
            if after is None or isinstance(after, BOUNDED):
                nn.init.xavier_uniform_(layer.weight)
            else:
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # one of a WEIGHTED kind
    return program


def _hidden_relu(program: Program, match: re.Match[str], module: str) -> Program:
    """Put ReLU in place of the hidden activations that are named, and initialize for it.

    Which these are: those of the type of the layer that the alarm names, if it has no weights; else what is bounded.
    """
    layers = list(program.net)  # type: ignore[call-overload]  # a Sequential
    hidden = layers[:-1]
    named = program.net.get_submodule(module.removeprefix("net.")) if module else program.net
    kinds = BOUNDED if list(named.parameters()) else type(named)
    changed = [nn.ReLU() if isinstance(layer, kinds) else layer for layer in hidden]
    return _initialized(replace(program, net=nn.Sequential(*changed, layers[-1])), match, module)


def _normalized(program: Program, match: re.Match[str], module: str) -> Program:
    """Put a batch norm after each hidden layer with weights."""
    layers = list(program.net)  # type: ignore[call-overload]  # a Sequential
    last = max(at for at, layer in enumerate(layers) if isinstance(layer, WEIGHTED))
    put: list[nn.Module] = []
    for at, layer in enumerate(layers):
        put.append(layer)
        if at < last and isinstance(layer, nn.Linear):
            put.append(nn.BatchNorm1d(layer.out_features))
        elif at < last and isinstance(layer, nn.Conv2d):
            put.append(nn.BatchNorm2d(layer.out_channels))
    return replace(program, net=nn.Sequential(*put))


def _hidden_relu_normalized(program: Program, match: re.Match[str], module: str) -> Program:
    return _normalized(_hidden_relu(program, match, module), match, module)


class _Permute(nn.Module):
    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = order

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.permute(self.order)


def _permuted(program: Program, match: re.Match[str], module: str) -> Program | None:
    """Put a permutation in place of the layer that is named, if that has no weights."""
    place = module.removeprefix("net.")
    if not place.isdigit() or list(program.net[int(place)].parameters()):  # type: ignore[index]  # a Sequential
        return None
    order = tuple(int(axis) for axis in match["order"].split(","))
    program.net[int(place)] = _Permute(order)  # type: ignore[index]  # a Sequential
    return program


def _less_dropout(program: Program, match: re.Match[str], module: str) -> Program | None:
    dropped = [layer for layer in program.net.modules() if isinstance(layer, nn.Dropout)]
    for layer in dropped:
        layer.p /= 2
    return program if dropped else None


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


REPAIRS: list[tuple[re.Pattern[str], Any]] = [
    (_words(r"set lr ?= ?(?P<rate>[0-9.e+-]*[0-9])"), _named_rate),
    (_words(r"(?P<way>multiply|divide) (?:all rates|the learning rate|it) by (?P<factor>[0-9.]*[0-9])"), _named_factor),
    (_words(r"(?:lower|raise) the learning rate to (?:about )?(?P<rate>[0-9.e+-]*[0-9])"), _named_rate),
    (_words(r"lower the learning rate|the learning rate is too high"), partial(_rate, 0.1)),
    (_words(r"raise the learning rate"), partial(_rate, 10.0)),
    (_words(r"clip gradients"), _clipped),
    (_words(r"set eps=(?P<eps>[0-9.e+-]*[0-9])"), _named_epsilon),
    (_words(r"call zero_grad\(\) before the backward pass"), _usual_step),
    (_words(r"use permute\((?P<order>[0-9, ]+)\) in place of"), _permuted),
    (_words(r"scale the input and the targets"), _scaled_both),
    (_words(r"scale the input|scale each column|normalize the inputs"), _scaled_input),
    (_words(r"mean of the training targets|scale the targets"), _scaled_targets),
    (_words(r"give both the same shape"), _same_shape),
    (_words(r"remove the softmax and use binary_cross_entropy_with_logits"), _independent),
    (_words(r"remove (?:the|this) (?P<what>softmax|sigmoid|relu|tanh)"), _removed),
    (_words(r"use (?:a )?sigmoid for one output"), _sigmoid),
    (_words(r"for more classes use cross_entropy|one output per class"), _classes),
    (_words(r"apply log_softmax"), _log_softmax),
    (_words(r"use relu or gelu in place of .*, (?:and )?add normalization"), _hidden_relu_normalized),
    (_words(r"use relu or gelu (?:in place of|instead)"), _hidden_relu),
    (
        _words(
            r"initialization that suits the activation|weights of this layer are initialized|this layer is initialized"
        ),
        _initialized,
    ),
    (_words(r"add normalization|or normalize it|put a batch norm"), _normalized),
    (_words(r"lower its rate|lower the rate of this dropout"), _less_dropout),
]
"""What words of an advice ask for."""
