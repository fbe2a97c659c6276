"""The callbacks of hookboard with their options."""

import torch
from combinations.case import Case, one_of
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


@one_of("ours")
def a_HealthMonitor(case: Case) -> None:
    case.ours.append(lambda: hb.HealthMonitor(**DUE))


@one_of("ours")
def a_HealthMonitor_that_finds_NaN_late_at_every_second_step(case: Case) -> None:
    case.ours.append(lambda: hb.HealthMonitor(every_n_steps=2, nonfinite="late"))


@one_of("ours")
def activations_of_leaves_with_histograms_in_all_stages(case: Case) -> None:
    case.ours.append(lambda: hb.ActivationLogger(histogram=True, stages=BOTH, **DUE))


@one_of("ours")
def inputs_and_outputs_of_all_modules(case: Case) -> None:
    case.ours.append(lambda: hb.ActivationLogger("**", roles=["input", "output"], **DUE))


@one_of("ours")
def gradients_at_outputs_and_of_parameters(case: Case) -> None:
    case.ours.append(lambda: hb.GradientLogger("**", roles=["grad_output", "parameter_grad"], histogram=True, **DUE))


@one_of("ours")
def gradients_passed_back_to_inputs(case: Case) -> None:
    case.rounds = True
    case.ours.append(lambda: hb.GradientLogger(roles="grad_input", **DUE))


@one_of("ours")
def parameters_and_their_updates(case: Case) -> None:
    names = ["mean", "std", "l2", "update_norm", "update_ratio", "unchanged_fraction"]
    case.ours.append(lambda: hb.ParameterLogger(statistics=names, histogram=True, **DUE))


@one_of("ours")
def statistics_of_channels_quantiles_and_of_the_users_own(case: Case) -> None:
    names = ["mean", "p50", "dead_fraction", "underflow_fraction", own_statistic()]
    case.ours.append(lambda: hb.ActivationLogger(statistics=names, **DUE))
    case.ours.append(lambda: hb.GradientLogger(statistics=names, **DUE))


@one_of("ours")
def pictures(case: Case) -> None:
    case.ours.append(lambda: hb.FeatureMapLogger(stage="train", **DUE))
    case.ours.append(lambda: hb.FeatureMapLogger("head", normalize="layer", **DUE))
    case.ours.append(lambda: hb.KernelLogger(**DUE))


@one_of("ours")
def class_activation_maps(case: Case) -> None:
    case.ours.append(lambda: hb.CAMLogger("net.block", method="layer_cam", **DUE))


@one_of("ours")
def an_Intervention_that_changes_nothing(case: Case) -> None:
    case.ours.append(lambda: hb.Intervention(hb.Scale(1.0), "head", stages=BOTH))
    case.ours.append(lambda: hb.Intervention(hb.Scale(1.0), "head", role="grad_output"))
