"""`Reader`: traces a step while it runs, and asks the `STEP_RULES` about it."""

import functools
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from hookboard.base.torch_private import computing_plainly, is_opaque, parameters_in
from hookboard.health.rule import Finding, Rule, rules_in
from hookboard.health.rules import LOOK_RULES
from hookboard.health.run import Flow, StepFacts
from hookboard.tracing.bad_operation import nodes_behind
from hookboard.tracing.calls import PartialGraph, Value
from hookboard.tracing.cuts import CUT
from hookboard.tracing.dependence import WEIGHING, note_input, taken_by_weights
from hookboard.tracing.experts import ROUTING, note_choice, routers_of
from hookboard.tracing.ledger import (
    any_not_zero,
    classes_of,
    has_moving_target,
    kind_of,
    still_terms,
    targets_of,
    terms_of,
    weights_behind,
)
from hookboard.tracing.loss_rules import OBSERVERS, TracedStep, findings_of
from hookboard.tracing.program import StepTrace
from hookboard.tracing.scaling import DICE_OBSERVERS, constant_loss

_ABOUT_THE_STEP = "dependence loss_rules modes leak scaling cuts adapters experts optimizing"

STEP_RULES: tuple[Rule, ...] = tuple(
    rule for file in _ABOUT_THE_STEP.split() for rule in rules_in(import_module(f"hookboard.tracing.{file}"))
)
"""The rules about a step's code, in the order in which they are asked. A rule may be several `Rule`s of its name."""

RULES: dict[str, Rule] = {}
"""Every built-in rule by name; of several with one name the first."""

for one in (*LOOK_RULES, *STEP_RULES):
    RULES.setdefault(one.name, one)

STEP = frozenset(rule.name for rule in STEP_RULES)
"""The names of the rules that judge the code of the training step, some of them later looks too."""


QUESTIONS = [rule for rule in STEP_RULES if rule is not CUT]
"""The rules that judge the code of a step up to one of its losses. `cut` needs all of them: it is asked at the end."""


class Reader:
    """Traces a step and judges it: run it inside `reading`, give its loss to `take_loss`, then ask `findings`."""

    def __init__(self, model: nn.Module, batch: object, at_backward: Callable[[Tensor], bool] | None = None) -> None:
        self.step = StepTrace(
            model,
            batch,
            {
                **OBSERVERS,
                **DICE_OBSERVERS,
                **dict.fromkeys(ROUTING, note_choice),
                **dict.fromkeys(WEIGHING, note_input),
            },
            at_backward or self._take_only,  # called with a loss; its backward pass runs if that is True
        )
        self._parameters = parameters_in(model)
        self._trained = {name for name, parameter in self._parameters.items() if parameter.requires_grad}
        self.losses: list[TracedStep] = []  # the step up to each of its losses
        self.has_gradient: bool | None = None  # whether any loss gives one that is not 0; None if that is not known
        self.reached: set[str] = set()  # the parameters that a gradient reaches from any loss
        self.moving: set[str] = set()  # the parameters that move any loss, with a gradient or without
        self._moved: set[str] = set()  # those on which the latest loss depends whatever is chosen, as far as calls tell
        self.outside: list[nn.Parameter] = []  # those with a gradient that are not the model's, as of layers in a list

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which the functions of torch that are called are recorded."""
        return self.step.recording()

    def _take_only(self, loss: Tensor) -> bool:
        computing_plainly(self.take_without_backward)(loss)
        return False

    def take_without_backward(self, loss: Tensor) -> None:
        """Note a loss of the step whose backward pass will not run: its gradients are computed here."""
        self.take_loss(loss)
        weights = [parameter for parameter in self._parameters.values() if parameter.requires_grad]
        # A custom `autograd.Function` may do anything: FSDP's writes gradients.
        if weights and loss.requires_grad and not self.has_gradient and _leaves_of(loss) is not None:
            with self.step.aside():  # these calls are not the step's
                try:
                    gradients = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
                except RuntimeError:  # the loss is no single number, or the graph was freed or changed in place
                    return
                self.has_gradient = any_not_zero(gradients)

    def take_loss(self, loss: Tensor, of: Value | None = None, factor: float = 1.0) -> TracedStep:
        """Note a loss, `factor` times the value `of` that rules judge; return the step up to there."""
        number = float(loss.detach()) / factor if loss.numel() == 1 and not loss.is_complex() else math.nan
        value = of or self.step.value_of(loss)
        value.requires_grad = loss.requires_grad  # it may have been set since
        leaves = _leaves_of(loss)
        names = {id(leaf): self.step.value_of(leaf).parameter for leaf in leaves or ()}
        # What the backward pass of a custom function does is unknown.
        with_gradient = (
            self._parameters.keys() if leaves is None else {name for name in names.values() if name is not None}
        )
        self.reached |= with_gradient
        graph = PartialGraph(nodes_behind(loss), self.step.numbers, loss.device, self.step.not_asked)
        still = still_terms(value, self._parameters, graph)
        # Those on which it depends with a gradient or without; not only through its targets, as those of a teacher.
        behind = functools.partial(weights_behind, value, self._parameters, graph, targets_of(value))
        self.moving |= with_gradient | (self._trained & behind())
        self._moved = self._trained & behind(beyond_choices=False)
        without = self._trained - self.reached
        self.losses.append(TracedStep(self.step, value, self._trained, without, number, graph, still=still))
        if leaves is None:
            return self.losses[-1]
        known = {id(parameter) for parameter in self.outside}
        self.outside += [
            leaf for leaf in leaves if isinstance(leaf, nn.Parameter) and not names[id(leaf)] and id(leaf) not in known
        ]
        return self.losses[-1]

    def leads_to(self, loss: Tensor) -> bool:
        """Return True if a gradient of the loss reaches a parameter of the model, or may do so."""
        leaves = _leaves_of(loss)
        return leaves is None or any(self.step.value_of(leaf).parameter is not None for leaf in leaves)

    def forget(self) -> None:
        """Clear the record, which frees the tensors of the step and their graphs."""
        self.step.forget()
        self.losses.clear()
        self.outside.clear()

    def facts(self, flow: Flow | None = None) -> StepFacts:
        """Return what is known of the step so far, for the judge of a run; `flow` is that of an earlier loss."""
        first, *others = self.losses
        terms = [one for done in self.losses for one in terms_of(done.loss) if one.requires_grad and one.of_batch]
        kinds = {kind_of(one) for one in terms}
        flow = self.step.flow() if flow is None else flow
        return StepFacts(
            flow,
            first.number,
            math.nan if others else constant_loss(first),
            is_sum=len(kinds) > 1 or not classes_of(first),
            classes=classes_of(first),
            routers=tuple(routers_of(first)),
            has_moving_target=has_moving_target(first),
            unread=frozenset(self.step.float_paths)
            - {one.path for done in self.losses for one in done.loss.ancestors() if one.path is not None},
            taken=taken_by_weights(first),
        )

    def findings(self) -> list[Finding]:
        """Return the findings of all rules for each loss, alarms first; equal ones once."""
        found = [finding for done in self.losses for finding in findings_of(done, QUESTIONS)]
        return alarms_first([*found, *self.cuts()])

    def idle(self) -> frozenset[str]:
        """Return the trainable parameters that move no loss of the step, once all backward passes have run."""
        # Where nothing moves a loss, as with an empty batch, that tells nothing of single parameters.
        return frozenset(self._trained - self.moving) if self.moving else frozenset()

    def set_aside_zeros(self) -> None:
        """Take those parameters from `moving` whose gradients are all 0 and that do not move the latest loss."""
        gradients = {name: self._parameters[name].grad for name in self._trained & self.moving}
        zeros = {name for name, grad in gradients.items() if grad is not None and not any_not_zero([grad])}
        self.moving -= zeros - self._moved

    def cuts(self) -> list[Finding]:
        """Return what `cut` finds for each loss, once all backward passes have run."""
        without = self._trained - self.reached
        steps = [done._replace(without=without, has_gradient=self.has_gradient) for done in self.losses]
        return [finding for done in steps for finding in findings_of(done, [CUT])]


def alarms_first(found: Iterable[Finding]) -> list[Finding]:
    """Return findings, alarms first; equal ones once."""
    return sorted(dict.fromkeys(found), key=lambda finding: finding.severity != "alarm")


def _leaves_of(loss: Tensor) -> list[Tensor] | None:
    """Return the tensors that a gradient of the loss reaches; None with custom functions or too many nodes."""
    nodes = nodes_behind(loss)
    if any(map(is_opaque, nodes)) or (loss.grad_fn is not None and not nodes):
        return None
    ends: dict[Any, None] = dict.fromkeys(before for node in nodes for before, _ in node.next_functions)
    return [*([loss] if loss.is_leaf else []), *(end.variable for end in ends if hasattr(end, "variable"))]
