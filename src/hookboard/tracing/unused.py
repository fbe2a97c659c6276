"""`unused_parameters`: parameters that a step under DistributedDataParallel does not use."""

from collections.abc import Collection, Iterator

from torch import nn

from hookboard.base.messages import listed
from hookboard.base.prompts import file_name
from hookboard.base.torch_private import parameters_in
from hookboard.base.user_code import is_of_library
from hookboard.health import Finding, Rule
from hookboard.tracing.program import StepTrace

UNUSED_PARAMETERS = Rule("unused_parameters", None, of="step", gives="alarm")


def unused_parameters(step: StepTrace, without: Collection[str]) -> Iterator[Finding]:
    """Yield an alarm if DDP waits for gradients that do not come: its next forward pass raises an error.

    Args:
        step: the recorded calls.
        without: the names of the trainable parameters that no gradient reaches.
    """
    missing = [
        name
        for name, parameter in parameters_in(step.model).items()
        if name in without and id(parameter) in step.waiting_for
    ]
    count = "1 parameter" if len(missing) == 1 else f"{len(missing)} parameters"
    if missing:
        yield Finding(
            "",
            f"DistributedDataParallel waits for the gradients of {count} that no loss of this step depends on: "
            f"{listed(missing, 4)}{_not_called(step, missing)}; the next forward pass raises an error",
            "use these parameters in every step, or pass find_unused_parameters=True to DistributedDataParallel (in "
            "Lightning, strategy='ddp_find_unused_parameters_true'; in Hugging Face, ddp_find_unused_parameters=True)",
            "alarm",
            rule="unused_parameters",
        )


def _not_called(step: StepTrace, missing: Collection[str]) -> str:
    """Return a clause on the first module of theirs that was not called, and the code that did not call it."""
    called = {op.place.module for op in step.ops}
    for name in missing:
        parts = name.split(".")[:-1]
        for end in range(1, len(parts) + 1):
            module = ".".join(parts[:end])
            if not any(f"{one}.".startswith(f"{module}.") for one in called):
                return f", because {_by(step.model.get_submodule('.'.join(parts[: end - 1])))} did not call {module}"
    return ""


def _by(parent: nn.Module) -> str:
    """Return the user's code that should call the modules of this one, as "Net.forward (net.py:7)"."""
    for method in ("forward", "training_step"):
        code = getattr(getattr(type(parent), method, None), "__code__", None)
        if code is not None and not is_of_library(code.co_filename):
            return f"{type(parent).__name__}.{method} ({file_name(code.co_filename)}:{code.co_firstlineno})"
    return "the step"
