"""`unused_parameters`: parameters that a step under DistributedDataParallel does not use."""

from collections.abc import Collection, Iterator

from hookboard.base.messages import listed
from hookboard.base.torch_private import parameters_in
from hookboard.health.rule import Finding, Rule
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
            f"{listed(missing, 4)}; the next forward pass raises an error",
            "use these parameters in every step, or pass find_unused_parameters=True to DistributedDataParallel (in "
            "Lightning, strategy='ddp_find_unused_parameters_true'; in Hugging Face, ddp_find_unused_parameters=True)",
            "alarm",
            rule="unused_parameters",
        )
