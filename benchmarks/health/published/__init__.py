"""The rules of other tools, with their thresholds, on the very same trainings, written anew from what they say.

None of them was made for trainings of 200 steps, so a cadence is translated where it is given in epochs: an epoch is
two looks, 10 steps. Where a tool has a choice, the one is taken that serves it better, and each alarm is given all the
names of ours that it could mean. What a tool does outside of the training (fits to a single batch, trainings of its
own, checks of the labels) is left out.
"""

from collections.abc import Callable

from benchmarks.health.alarms import Alarm
from benchmarks.health.published.autotrainer import autotrainer
from benchmarks.health.published.deepchecker import deepchecker
from benchmarks.health.published.deepdiagnosis import deepdiagnosis
from benchmarks.health.published.sagemaker import sagemaker
from benchmarks.health.trace import Trace

PUBLISHED: dict[str, Callable[[Trace], list[Alarm]]] = {
    "AutoTrainer": autotrainer,
    "DeepDiagnosis": deepdiagnosis,
    "SageMaker Debugger": sagemaker,
    "TheDeepChecker": deepchecker,
}
"""Every set of rules by name: a function from a trace to its alarms, the first one first."""

__all__ = ["PUBLISHED"]
