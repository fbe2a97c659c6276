"""Finds where gradients are cut between the trainable parameters and the loss."""

import math
from collections.abc import Iterator, Mapping

from hookboard.base.messages import listed
from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import CREATING, CUTS, Op, Value
from hookboard.tracing.ledger import joining, targets_of, terms_of, trained_by
from hookboard.tracing.loss_rules import FLAT, LOSSES, TracedStep


def cut(done: TracedStep) -> Iterator[Finding]:
    """Yield findings for the call that cuts the gradient of the most parameters, and for gradients that are all 0."""
    if done.trained and len(done.without) == len(done.trained):
        yield from _of_all(done)
        return
    takers = _takers_of_cuts(done)
    without = next(_term_without_gradient(done, takers), None)
    if without is not None:
        yield without
        return
    cuts: dict[object, tuple[Op, set[str]]] = {}  # by line: a loop makes one often
    targets = targets_of(done.loss)
    for value in done.loss.ancestors(lambda one: one not in targets and not _is_straight_through(one, takers)):
        op = value.op
        if op is None or op.name == "requires_grad":  # which freezes a parameter on purpose
            continue
        if value.requires_grad or op.name in CREATING or (op.name, op.place) in cuts:
            continue
        if any(given.requires_grad for given in op.inputs):
            lost = {name for given in op.inputs for name in trained_by(given) or ()}.intersection(done.without)
            if op.checkpoint is None:
                cuts[op.name, op.place] = op, lost
            else:  # of which there is often one for each layer
                cuts["checkpoint"] = op, lost | cuts.get("checkpoint", (op, lost))[1]
    op, lost = max(cuts.values(), key=lambda pair: len(pair[1]), default=(None, set[str]()))
    if op is not None and lost:
        place = op.checkpoint or op.place
        yield Finding(
            place.module,
            f"{_named(op)} {place} cuts the gradient of {len(lost)} of {len(done.trained)} trainable "
            f"parameters: {listed(sorted(lost), 3)}",
            f"remove the {_cutting(op)}; if it is intended, as for a teacher, set requires_grad=False on the "
            "parameters that should not change"
            if op.checkpoint is None
            else "pass use_reentrant=False to checkpoint(), or pass it an input that requires a gradient, as "
            "transformers' enable_input_require_grads() does",
        )
    yield from _gone(done)


CUT = Rule("cut", cut, of="step")


def _takers_of_cuts(done: TracedStep) -> Mapping[Value, list[Op]]:
    """Return which calls take the results of `CUTS`."""
    takers: dict[Value, list[Op]] = {}
    for op in done.step.ops:
        for value in op.inputs:
            if value.op is not None and value.op.name in CUTS:
                takers.setdefault(value, []).append(op)
    return takers


def _is_straight_through(value: Value, takers: Mapping[Value, list[Op]]) -> bool:
    """Return True if a value is only added to, or taken from, what it comes from, as in `x + (q - x).detach()`."""
    taking = takers.get(value)
    if not taking or not all(op.name in ("add", "radd", "sub", "rsub") for op in taking):
        return False
    before = {id(ancestor) for ancestor in value.ancestors()}
    return all(id(given) in before for op in taking for given in op.inputs)


def _term_without_gradient(done: TracedStep, takers: Mapping[Value, list[Op]]) -> Iterator[Finding]:
    """Yield an alarm for a term of the loss that comes from the parameters and passes them no gradient."""
    for term in terms_of(done.loss):
        if term.requires_grad or not term.of_parameters or _is_straight_through(term, takers):
            continue
        before = (value.op for value in term.ancestors() if value.op is not None and not value.requires_grad)
        op = next((op for op in before if any(given.requires_grad for given in op.inputs)), None)
        if op is None and term.op is not None and term.op.name in LOSSES:
            yield Finding(
                term.op.place.module,
                f"the inputs of {term.op.name} {term.op.place}, a term of the loss, do not require gradients, so this "
                "term has no effect on training",
                "pass it the output of the model being trained",
                "alarm",
            )
            return
        if op is None or op.name in CREATING or term in done.still:
            continue
        yield _without_gradient(op)
        return
    terms = [term.op for term in terms_of(done.loss) if term.op is not None and not term.op.inputs]  # as of `tensor`
    given = (given for op in (*joining(done.loss), *terms) for given in op.arguments.values())
    numbers = [one for one in given if isinstance(one, float) and not _is_short(one)]  # 1.0 may stand in the code
    behind = set(done.loss.ancestors()) if numbers else set()  # with what is taken away again, as in pyro
    for op in done.step.ops if numbers else ():
        number = op.number or 0.0
        is_of_model = any(given.of_parameters and given not in behind for given in op.inputs)
        if is_of_model and not _is_short(number) and any(_is_short(one / number) for one in numbers):  # weighted
            yield _without_gradient(op)
            return


def _is_short(number: float) -> bool:
    """Return True for a number of at most three digits, as people write."""
    return math.isfinite(number) and abs(number - float(f"{number:.3g}")) <= 1e-12 * abs(number)


def _without_gradient(op: Op) -> Finding:
    is_derivative = op.name == "grad" and "outputs" in op.arguments
    return Finding(
        op.place.module,
        f"a term of the loss comes from {_named(op)} {op.place}, which passes no gradient back, so this term has no "
        "effect",
        "call torch.autograd.grad with create_graph=True"
        if is_derivative
        else f"compute this term without {_cutting(op)}; to log the sum of several losses, add them up for that alone",
        "alarm",
    )


def _of_all(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for a loss that needs a gradient and gives none to any parameter; it names the last cut."""
    before = list(done.loss.ancestors())
    of_others = [value for value in before if value.op is None and value.requires_grad and value.parameter is None]
    if not done.loss.requires_grad or any(value.path is None for value in of_others):
        return  # the backward pass raises an error that says so; or the loss trains a tensor outside of the model
    without = {id(value.op) for value in before if not value.requires_grad}
    taking = [op for op in done.step.ops if op.place.file and any(given.requires_grad for given in op.inputs)]
    cutting = [op for op in taking if id(op) in without] or [op for op in taking if op.name in CUTS or not op.with_grad]
    for op in cutting[-1:]:
        yield Finding(
            op.place.module,
            f"no gradient reaches any of the {len(done.trained)} trainable parameters; the last call that blocks it "
            f"is {_named(op)} {op.place}",
            f"compute the loss from the outputs without {_cutting(op)}",
            "alarm",
        )


def _cutting(op: Op) -> str:
    """Return what cuts the gradient at a call: its name, `torch.no_grad()`, or a reentrant checkpoint."""
    if op.checkpoint is not None:
        return "checkpoint() with use_reentrant=True"
    return f"{op.name}()" if op.with_grad or op.name in CUTS else "torch.no_grad()"


def _named(op: Op) -> str:
    """Return the call at which the gradient is cut: `torch.no_grad()` itself may stand at another line."""
    cutting = _cutting(op)
    return f"{op.name}() under torch.no_grad()" if cutting == "torch.no_grad()" else cutting


def _gone(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding if all gradients are exactly 0; it names what makes them so, such as `round`."""
    if done.has_gradient is not False or not done.trained:
        return
    if done.number == 0:
        yield Finding(
            "",
            "the loss of the first batch and all gradients are exactly 0",
            "check the terms of the loss, and what they are multiplied by (a mask, or advantages, which are 0 if all "
            "rewards in a group are equal); ignore this if they differ in later batches",
        )
        return
    values = [value for value in done.loss.ancestors() if value.op is not None and value.op.name in FLAT]
    flat = next((value.op for value in values if value.requires_grad and value.of_parameters), None)
    yield Finding(
        "" if flat is None else flat.place.module,
        f"the gradients of all {len(done.trained)} trainable parameters are exactly 0"
        + (f": the derivative of {flat.name} {flat.place} is 0 everywhere" if flat else ", although the loss is not"),
        f"compute the loss from the input of {flat.name}; use {flat.name} for metrics only"
        if flat
        else "look for a multiplication by 0 on the way to the loss: a mask, or a dead or saturated activation",
        "alarm",
        is_root=flat is not None,
    )
