"""Finds where gradients are cut between the trainable parameters and the loss."""

from collections.abc import Iterator

from hookboard.auditing.calls import CUTS, Op, Value
from hookboard.auditing.ledger import joining, terms_of, trained_by
from hookboard.auditing.rules import FLAT, LOSSES, Finding, TracedStep
from hookboard.messages import listed

_CREATING = frozenset(
    {"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"}
    | {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "shape", "size"}
)
"""Functions that take nothing but shape, dtype and device from a tensor."""


def cut(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding for the call that cuts the gradient of the most trainable parameters.

    It is an alarm if no parameter gets a gradient, or if it cuts a whole term of the loss, and a note otherwise.
    Without such a call, yield an alarm if all gradients are exactly 0.
    """
    if done.trained and len(done.without) == len(done.trained):
        yield from _of_all(done)
        return
    without = next(_term_without_gradient(done), None)
    if without is not None:
        yield without
        return
    reached: dict[int, tuple[Op, set[str]]] = {}
    for value in done.loss.ancestors(lambda one: not _is_straight_through(done, one)):
        op = value.op
        if op is None or op.name == "requires_grad":  # which freezes a parameter on purpose
            continue
        if not value.requires_grad and any(given.requires_grad for given in op.inputs) and op.name not in _CREATING:
            lost = {name for given in op.inputs for name in trained_by(given) or ()}.intersection(done.without)
            if lost:
                reached[id(op)] = op, lost
    if reached:
        op, lost = max(reached.values(), key=lambda pair: len(pair[1]))
        yield Finding(
            "cut",
            "note",
            op.place.module,
            f"{_named(op)} at {op.place} cuts the gradient of {len(lost)} of {len(done.trained)} trainable "
            f"parameters: {listed(sorted(lost), 3)}",
            f"remove the {_named(op)}; where it is meant, as in a teacher, set requires_grad=False on what shall stay "
            "as it is",
        )
    else:
        yield from _gone(done)


def _is_straight_through(done: TracedStep, value: Value) -> bool:
    """Return True if a value is only added to what it was computed from, as in `x + (quantized - x).detach()`."""
    if value.op is None or value.op.name not in CUTS:
        return False
    takers = [op for op in done.step.ops if any(given is value for given in op.inputs)]
    before = {id(one) for one in value.ancestors()}
    return bool(takers) and all(
        op.name in ("add", "radd") and all(id(given) in before for given in op.inputs) for op in takers
    )


def _term_without_gradient(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for a term of the loss that comes from the parameters and passes them no gradient."""
    for term in terms_of(done.loss):
        if term.requires_grad or not term.of_parameters:
            continue
        before = (value.op for value in term.ancestors() if value.op is not None and not value.requires_grad)
        op = next((op for op in before if any(given.requires_grad for given in op.inputs)), None)
        if op is None and term.op is not None and term.op.name in LOSSES:
            yield Finding(
                "cut",
                "alarm",
                term.op.place.module,
                f"a term of the loss, {term.op.name} at {term.op.place}, takes nothing that needs a gradient: it "
                "trains nothing",
                "give it the output of the model that is trained",
            )
            return
        if op is None or op.name in _CREATING:
            continue
        yield _without_gradient(op)
        return
    numbers = [
        given for op in joining(done.loss) for given in op.arguments.values() if isinstance(given, float) and given
    ]
    for op in done.step.ops:
        if op.number in numbers and any(given.of_parameters for given in op.inputs):
            yield _without_gradient(op)
            return


def _without_gradient(op: Op) -> Finding:
    is_derivative = op.name == "grad" and "outputs" in op.arguments
    return Finding(
        "cut",
        "alarm",
        op.place.module,
        f"a term of the loss comes from {_named(op)} at {op.place}, which passes no gradient on: it trains nothing",
        "call torch.autograd.grad with create_graph=True"
        if is_derivative
        else f"compute it without {_named(op)}; to log the sum of several losses, add them for the log alone",
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
            "cut",
            "alarm",
            op.place.module,
            f"no gradient reaches any of the {len(done.trained)} trainable parameters; the last call that passes none "
            f"is {_named(op)} at {op.place}",
            f"compute the loss from the outputs without {_named(op)}",
        )


def _named(op: Op) -> str:
    """Return what cuts the gradient at a call: its name, or `torch.no_grad()`."""
    return f"{op.name}()" if op.with_grad or op.name in CUTS else "torch.no_grad()"


def _gone(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm if all gradients are exactly 0; it names a function such as `round` on the way to the loss."""
    if done.number == 0 or done.has_gradient is not False:
        return
    values = [value for value in done.loss.ancestors() if value.op is not None and value.op.name in FLAT]
    flat = next((value.op for value in values if value.requires_grad and value.of_parameters), None)
    yield Finding(
        "cut",
        "alarm",
        "" if flat is None else flat.place.module,
        f"the gradients of all {len(done.trained)} trainable parameters are exactly 0"
        + (f": that of {flat.name} at {flat.place} is 0 everywhere" if flat else ", and the loss is not"),
        f"compute the loss from what {flat.name} takes; use {flat.name} for metrics only"
        if flat
        else "look for what multiplies by 0 on the way to the loss: a mask, or an activation that is dead or saturated",
        is_effect=flat is None,
    )
