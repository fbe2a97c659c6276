"""`Reader`: traces a step while it runs, and applies all rules to it."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from hookboard.auditing import handwritten, leak, mixing
from hookboard.auditing.constant import constant_loss
from hookboard.auditing.cuts import cut
from hookboard.auditing.dropping import dropout
from hookboard.auditing.influence import no_influence
from hookboard.auditing.inputs import WEIGHING, few_tokens, input_scale, note_input, target_leak
from hookboard.auditing.leak import future_leak, note_embedding
from hookboard.auditing.modes import eval_mode
from hookboard.auditing.padding_masks import note_mask, padding_mask
from hookboard.auditing.program import StepTrace, Value
from hookboard.auditing.rules import FLAT, OBSERVERS, RULES, Finding, TracedStep, findings_of
from hookboard.auditing.scaling import loss_scale, unbounded_loss
from hookboard.auditing.weighing import class_weights, padding
from hookboard.layers import Flow

ALL_RULES = (
    no_influence,
    *RULES,
    eval_mode,
    mixing.batch_mixing,
    mixing.loss_shape,
    handwritten.loss_shape,
    handwritten.loss_input,
    handwritten.targets,
    cut,
    unbounded_loss,
    loss_scale,
    future_leak,
    leak.loss_shape,
    input_scale,
    few_tokens,
    target_leak,
    padding,
    padding_mask,
    dropout,
    class_weights,
)
"""The rules that judge the code of a step."""


class Reader:
    """Traces a step and judges it: run the step inside `reading`, give its loss to `take_loss`, then ask `findings`.

    Args:
        model: the model.
        batch: the batch that the step takes.
        at_backward: called with the loss in place of `loss.backward()`. Left out: `take_loss`.
    """

    def __init__(self, model: nn.Module, batch: object, at_backward: Callable[[Tensor], None] | None = None) -> None:
        self._step = StepTrace(
            model,
            batch,
            {
                **OBSERVERS,
                **handwritten.OBSERVERS,
                "embedding": note_embedding,
                **dict.fromkeys(WEIGHING, note_input),
                "multi_head_attention_forward": note_mask,
            },
            at_backward or self.take_loss,
        )
        self._parameters = dict(model.named_parameters())
        self._trained = {name for name, parameter in self._parameters.items() if parameter.requires_grad}
        self.losses: list[tuple[Value, bool, float, Tensor | None]] = []
        """For each loss: its `Value`; whether it is finite; the loss as a float, NaN unless it is one real number; and
        the tensor if a rule needs its graph, otherwise None."""
        self.reached: set[str] = set()
        """The names of the parameters that a gradient reaches from any of the losses."""
        self.outside: list[nn.Parameter] = []
        """The parameters that a gradient reaches and that the model does not have, as those of layers in a list."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Record the functions of torch that are called inside the context."""
        with self._step:
            yield

    def take_loss(self, loss: Tensor) -> None:
        """Note a tensor as a loss of the step, from which a backward pass would start."""
        is_finite = bool(loss.detach().isfinite().all())
        number = float(loss.detach()) if loss.numel() == 1 and not loss.is_complex() else math.nan
        value = self._step.value_of(loss)
        value.requires_grad = loss.requires_grad  # it may have been set since
        live = loss if loss.requires_grad and any(op.name in FLAT for op in self._step.ops) else None
        self.losses.append((value, is_finite, number, live))
        leaves = _leaves_of(loss)
        if leaves is None:  # what the backward pass of a custom function does is unknown
            self.reached |= self._parameters.keys()
            return
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        self.reached |= {names[id(leaf)] for leaf in leaves if id(leaf) in names}
        known = names.keys() | {id(one) for one in self.outside}
        self.outside += [leaf for leaf in leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in known]

    def forget(self) -> None:
        """Clear the record, which frees the tensors of the step and their graphs."""
        self._step.forget()
        self.losses.clear()
        self.outside.clear()

    def flow(self) -> Flow:
        """Return which layer's output flows into which other one."""
        return self._step.flow()

    def constant_loss(self) -> float:
        """Return the least loss of a model that gives every sample the same output.

        NaN unless the step has just one loss, of a known kind: see `hookboard.auditing.constant.constant_loss`.
        """
        return constant_loss(self._traced(*self.losses[0])) if len(self.losses) == 1 else math.nan

    def findings(self) -> list[Finding]:
        """Return the findings of all rules for each loss, alarms first; equal ones once."""
        found = [finding for loss in self.losses for finding in findings_of(self._traced(*loss), ALL_RULES)]
        return sorted(dict.fromkeys(found), key=lambda finding: finding.severity != "alarm")

    def _traced(self, loss: Value, is_finite: bool, number: float, live: Tensor | None) -> TracedStep:
        """Make a `TracedStep` for one loss of the step; the arguments are its fields of the same name."""
        without = self._trained - self.reached
        return TracedStep(self._step, loss, self._trained, without, is_finite, number, live)


def _leaves_of(loss: Tensor) -> list[Tensor] | None:
    """Return the tensors that a gradient of the loss reaches; None if a custom `autograd.Function` is in its graph."""
    leaves, seen, waiting = [loss] if loss.is_leaf else [], set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            return None
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.append(leaf)
        waiting.extend(before for before, _ in node.next_functions)
    return leaves
