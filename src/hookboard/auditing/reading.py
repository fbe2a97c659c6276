"""`Reader`: reads a step while it runs."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from hookboard.auditing.leak import future_leak, note_embedding
from hookboard.auditing.program import Step, Value
from hookboard.auditing.rules import OBSERVERS, RULES, Done, Finding, findings_of
from hookboard.auditing.scaling import loss_scale, unbounded_loss
from hookboard.flow import Flow

ALL_RULES = (*RULES, unbounded_loss, loss_scale, future_leak)
"""The rules of a step."""


class Reader:
    """Reads a step that runs in the context of `reading`, inside `undisturbed`.

    Args:
        model: the model.
        batch: what the step takes.
        at_backward: is called with a loss in place of its `backward()`. Left out: `take`.
    """

    def __init__(self, model: nn.Module, batch: object, at_backward: Callable[[Tensor], None] | None = None) -> None:
        self._step = Step(model, batch, {**OBSERVERS, "embedding": note_embedding}, at_backward or self.take)
        self._parameters = dict(model.named_parameters())
        self._trained = {name for name, parameter in self._parameters.items() if parameter.requires_grad}
        self.losses: list[tuple[Value, bool, float]] = []
        """Each loss that was taken, whether it is finite, and its number."""
        self.reached: set[str] = set()
        """The parameters that a gradient reaches from any of them."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Follow what runs inside."""
        with self._step:
            yield

    def take(self, loss: Tensor) -> None:
        """Take a loss from which a backward pass would start."""
        is_finite = bool(loss.detach().isfinite().all())
        number = float(loss.detach()) if loss.numel() == 1 and not loss.is_complex() else math.nan
        self.losses.append((self._step.of(loss), is_finite, number))
        self.reached |= reached_from(loss, self._parameters)

    def forget(self) -> None:
        """Drop all that was read, and with it the tensors and their graphs."""
        self._step.forget()
        self.losses.clear()

    def flow(self) -> Flow:
        """Return which layer's output flows into which other one."""
        return self._step.flow()

    def findings(self) -> list[Finding]:
        """Return what is wrong, alarms first."""
        without = self._trained - self.reached
        found = [
            finding
            for loss, is_finite, number in self.losses
            for finding in findings_of(Done(self._step, loss, self._trained, without, is_finite, number), ALL_RULES)
        ]
        return sorted(dict.fromkeys(found), key=lambda finding: finding.severity != "alarm")


def reached_from(loss: Tensor, parameters: dict[str, nn.Parameter]) -> set[str]:
    """Return the names of the parameters that autograd's graph of the loss leads to.

    A function with a backward pass of its own may lead to any: then all are returned.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    reached = {names[id(loss)]} if id(loss) in names else set()
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            return set(parameters)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) in names:
            reached.add(names[id(leaf)])
        waiting.extend(before for before, _ in node.next_functions)
    return reached
