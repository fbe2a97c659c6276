"""`GradientLogger`: gradients of outputs, inputs and parameters."""

from collections.abc import Sequence
from typing import Literal, get_args

from torch import nn

from hookboard.base.checks import chosen
from hookboard.callbacks.measurement_state import MeasurementState
from hookboard.callbacks.numbers import SiteLogger
from hookboard.loops.callback import Selection
from hookboard.measure.statistics import DEFAULT, Statistic
from hookboard.model.selection import select

GradientRole = Literal["grad_output", "grad_input", "parameter_grad"]


class GradientLogger(SiteLogger[MeasurementState]):
    """Logs statistics, and optionally histograms, of gradients at the selected modules.

    They are gradients of the loss that Lightning backpropagates, which has been divided by k if
    `accumulate_grad_batches=k`. The scale of a GradScaler is divided out. If the gradients of an optimizer overflow,
    the scaler skips its step; all gradients of the step are then logged with their counts (such as `nonfinite_count`),
    and NaN for all other statistics (a triangle in TensorBoard).

    `grad_output` is the gradient with respect to the module's output. `grad_input` is the gradient that the module
    passes back to its inputs; if an input is also used elsewhere (a residual branch), it is only this module's part of
    the input's gradient. `parameter_grad` is the gradient of each of its parameters when the optimizer steps:
    accumulated, unscaled, not yet clipped by Lightning.

    Tags are `gradient_<statistic>/<module>`, `input_gradient_<statistic>/<module>` and
    `parameter_gradient_<statistic>/<parameter>`; `gradients/`, `input_gradients/` and `parameter_gradients/` for
    histograms. If a module is replaced during the fit, the new one is watched from the next logged step on, and a
    warning says so.

    `underflow_fraction` and `headroom` compare the gradient, its scale divided out, with the limits of the dtype in
    which autograd returned it.

    Args:
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default:
            every leaf module (for `parameter_grad`, every module that owns parameters, including the LightningModule
            itself, `""`), or, with `types`, every module of those types.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, and a leading `!` excludes.
        roles: Which tensors are measured, one name or several. Here: `grad_output`, `grad_input` and `parameter_grad`.
        every_n_steps: Optimizer steps between measurements, 1 or more. Default: the Trainer's `log_every_n_steps`.
        statistics: Names of statistics, or your own (a `hookboard.Statistic` or the dotted path to one). Those from
            `p01` on take extra time, but only where you ask for them. Quantiles (`p01` and so on) are off by at most
            half the width of a bin, 1/32 of the value.
            The names are `mean std var min max abs_max abs_mean rms l1 l2 zero_fraction nonfinite_count nan_count
            inf_count p01 p50 p99 dead_fraction underflow_fraction fp16_underflow_fraction headroom`.
            Default: `mean`, `std`, `abs_max`, `zero_fraction` and `nonfinite_count`.
        histogram: Whether to log histograms too; with `statistics=[]`, only histograms are logged. They cost about as
            much as all statistics together.
        sync_dist: Whether all ranks measure and merge their measurements, as if one process had seen all their data.
            Otherwise, rank 0 logs its own measurements.

    Raises:
        ValueError: At construction: an unknown statistic or role, or an `every_n_steps` below 1. At fit start: a
            pattern or type that matches no module, or `parameter_grad` for modules that own no parameter.

    Examples:
        >>> GradientLogger(types=["Conv2d", "Linear"], roles=["grad_output", "parameter_grad"]).roles
        ['grad_output', 'parameter_grad']
    """

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        roles: GradientRole | Sequence[GradientRole] = "grad_output",
        every_n_steps: int | None = None,
        statistics: str | Sequence[str | Statistic] = DEFAULT,
        histogram: bool = False,
        sync_dist: bool = True,
    ) -> None:
        super().__init__(modules, types, every_n_steps, statistics, histogram, sync_dist)
        self.roles = roles
        self._roles()

    def _roles(self) -> list[GradientRole]:
        return chosen("roles", self.roles, get_args(GradientRole))

    def _select(self, model: nn.Module) -> Selection:
        roles, owners = self._roles(), {}
        hooked = {} if roles == ["parameter_grad"] else select(model, self.modules, self.types)
        if "parameter_grad" in roles:
            owners = select(model, self.modules, self.types, owning="parameters")
        return Selection(hooked, owners)
