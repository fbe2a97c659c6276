"""SageMaker Debugger's built-in rules, with the defaults of its documentation.

VanishingGradient (mean absolute gradient below 1e-7), ExplodingTensor (NaN or Inf), DeadRelu (a unit that is active on
less than 1 % of the samples; alarm for a layer with more than half of such), SaturatedActivation (tanh beyond 9.5,
sigmoid beyond 17, for more than half), WeightUpdateRatio (above 10 or below 1e-8), PoorWeightInitialization (variances
of what ReLUs take that differ more than tenfold between layers, in the first 10 steps).
"""

from collections.abc import Iterator

from benchmarks.health.alarms import Alarm
from benchmarks.health.published.seen import alarm, has_nonfinite, layer_of, of_role, update_ratios
from benchmarks.health.trace import Trace

from hookboard.health.look import Look

VANISHING, ACTIVE, DEAD, LARGE, SMALL, SPREAD, STEPS = 1e-7, 0.01, 0.5, 10, 1e-8, 10, 10


def sagemaker(trace: Trace) -> list[Alarm]:
    alarms: list[Alarm] = []
    for look in trace.looks:
        alarms += _of_look(trace, look)
        variances = [
            extra.variance
            for name, extra in trace.extras.get(look.step, {}).items()
            if trace.layers[name].type == "ReLU"
        ]
        if look.step < STEPS and variances and max(variances) > SPREAD * min(variances):
            means = "activation_scale symmetric_units vanishing_gradient exploding_gradient"
            alarms.append(alarm("PoorWeightInitialization", "", look.step, means))
        for name, extra in trace.extras.get(look.step, {}).items():
            kind = trace.layers[name].type
            if kind == "ReLU" and (extra.active < ACTIVE).mean() > DEAD:
                alarms.append(alarm("DeadRelu", name, look.step, "dead_units"))
            limit = {"Tanh": 9.5, "Sigmoid": 17.0}.get(kind)
            if limit is not None and extra.beyond[limit] > DEAD:
                alarms.append(alarm("SaturatedActivation", name, look.step, "saturated"))
    return alarms


def _of_look(trace: Trace, look: Look) -> Iterator[Alarm]:
    for site, reading in look.readings.items():
        if has_nonfinite(reading):
            module = site.name if site.role in ("input", "output", "grad_output") else layer_of(trace.layers, site.name)
            yield alarm("ExplodingTensor", module, look.step, "nonfinite exploding_gradient")
    for name, reading in of_role(look, "parameter_grad"):
        if reading.moments.abs_mean < VANISHING:
            means = "vanishing_gradient no_gradient dead_units"
            yield alarm("VanishingGradient", layer_of(trace.layers, name), look.step, means)
    for name, ratio in update_ratios(look).items():
        if ratio > LARGE:
            yield alarm("WeightUpdateRatio", layer_of(trace.layers, name), look.step, "update_too_large")
        if ratio < SMALL:
            yield alarm("WeightUpdateRatio", layer_of(trace.layers, name), look.step, "update_too_small not_updated")
