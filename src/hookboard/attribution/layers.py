"""Chooses the layer that a class-activation map explains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from hookboard.attribution.classification import Call


@dataclass(frozen=True)
class Layer:
    """The module whose output (with `is_input`: first input) is explained.

    Args:
        name: the module's dotted name.
        module: the module itself.
        number: which call of the module, counted from 0.
        is_input: whether its first input is explained, not its output.
    """

    name: str
    module: nn.Module
    number: int = 0
    is_input: bool = False


def last_layer(calls: Sequence[Call]) -> Layer:
    """The layer that is explained if the user names none: the last one whose output still has positions.

    In a convolutional network it is the last layer whose output has the height and width of the last convolution's
    output, so that normalization and ReLU after that convolution are included. In a transformer it is the input of the
    last attention, or of the last `nn.TransformerEncoderLayer`: after it the scores may depend only on the class token.

    Args:
        calls: the calls inside the classifier, in the order in which they ended.

    Raises:
        ValueError: no module of the model returned maps.
    """
    convolutions = [
        k for k, call in enumerate(calls) if isinstance(call.module, nn.Conv2d) and math.prod(call.returned[2:]) > 1
    ]
    attentions = [
        k
        for k, call in enumerate(calls)
        if (isinstance(call.module, nn.TransformerEncoderLayer) or "attention" in type(call.module).__name__.lower())
        and len(call.given) in (3, 4)
    ]
    last = -1
    if convolutions:
        size = calls[convolutions[-1]].returned[2:]
        last = max(k for k, call in enumerate(calls) if len(call.returned) == 4 and call.returned[2:] == size)
    if attentions and attentions[-1] > last:
        call = calls[attentions[-1]]
        return Layer(call.name, call.module, _number(calls, attentions[-1]), is_input=True)
    if last < 0:
        raise ValueError("no module returned maps larger than one pixel: name a layer with `modules`")
    return Layer(calls[last].name, calls[last].module, _number(calls, last))


def named_layer(calls: Sequence[Call], name: str) -> Layer:
    """The output of the module `name` in the last of its calls that returned maps.

    Args:
        calls: the calls inside the classifier, in the order in which they ended.
        name: a dotted module name.

    Raises:
        ValueError: no call of this module returned maps.
    """
    for k, call in reversed(list(enumerate(calls))):
        if call.name == name and len(call.returned) in (3, 4):
            return Layer(name, call.module, _number(calls, k))
    raise ValueError(f"module {name!r} returned no maps of shape (n, channels, height, width), and no tokens")


def _number(calls: Sequence[Call], k: int) -> int:
    """Which of its module's calls the k-th call is."""
    return sum(call.module is calls[k].module for call in calls[:k])
