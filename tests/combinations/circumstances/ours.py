"""The callbacks of hookboard with their options."""

# ruff: noqa: N816 - the name of a circumstance is read as English

from collections.abc import Callable

import torch
from combinations.case import Case, Circumstance, one_of
from lightning.pytorch import Callback
from torch import Tensor

import hookboard as hb

BOTH = ["train", "validate"]
DUE = {"every_n_steps": 1}


def own_statistic() -> hb.Statistic:
    """Draws random numbers and works in place, which must not show."""

    def drawn(x: Tensor) -> Tensor:
        values = torch.cat([row.flatten() for row in x.unbind()]) if x.is_nested else x.flatten()
        return values[torch.randperm(len(values))[:2]].mul_(2).mean()

    return hb.Statistic("drawn", drawn)


def watched_by(*make: Callable[[], Callback], rounds: bool = False) -> Circumstance:
    @one_of("ours")
    def circumstance(case: Case) -> None:
        case.ours.extend(make)
        case.rounds |= rounds

    return circumstance


STATISTICS = ["mean", "p50", "dead_fraction", "underflow_fraction"]
OF_PARAMETERS = ["mean", "std", "l2", "update_norm", "update_ratio", "unchanged_fraction"]

a_HealthMonitor = watched_by(lambda: hb.HealthMonitor(**DUE))
a_HealthMonitor_that_finds_NaN_late_at_every_second_step = watched_by(
    lambda: hb.HealthMonitor(every_n_steps=2, nonfinite="late")
)
activations_of_leaves_with_histograms_in_all_stages = watched_by(
    lambda: hb.ActivationLogger(histogram=True, stages=BOTH, **DUE)
)
inputs_and_outputs_of_all_modules = watched_by(lambda: hb.ActivationLogger("**", roles=["input", "output"], **DUE))
gradients_at_outputs_and_of_parameters = watched_by(
    lambda: hb.GradientLogger("**", roles=["grad_output", "parameter_grad"], histogram=True, **DUE)
)
gradients_passed_back_to_inputs = watched_by(lambda: hb.GradientLogger(roles="grad_input", **DUE), rounds=True)
parameters_and_their_updates = watched_by(
    lambda: hb.ParameterLogger(statistics=OF_PARAMETERS, histogram=True, **DUE),
)
statistics_of_channels_quantiles_and_of_the_users_own = watched_by(
    lambda: hb.ActivationLogger(statistics=[*STATISTICS, own_statistic()], **DUE),
    lambda: hb.GradientLogger(statistics=[*STATISTICS, own_statistic()], **DUE),
)
pictures = watched_by(
    lambda: hb.FeatureMapLogger(stage="train", **DUE),
    lambda: hb.FeatureMapLogger("head", normalize="layer", **DUE),
    lambda: hb.KernelLogger(**DUE),
)
class_activation_maps = watched_by(lambda: hb.CAMLogger("net.block", method="layer_cam", **DUE))
an_Intervention_that_changes_nothing = watched_by(
    lambda: hb.Intervention(hb.Scale(1.0), "head", stages=BOTH),
    lambda: hb.Intervention(hb.Scale(1.0), "head", role="grad_output"),
)
