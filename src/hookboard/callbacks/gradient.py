"""What flows backward."""

from collections.abc import Sequence
from typing import Literal, get_args

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.optim import Optimizer

from hookboard.callbacks.base import SiteLogger, Watch
from hookboard.parameters import own_parameters, stepped_by
from hookboard.recorder import Recorder
from hookboard.selection import select
from hookboard.sites import Role, Site, resolve_roles
from hookboard.statistics import DEFAULT, Statistic
from hookboard.taps import Taps

GradientRole = Literal["grad_output", "grad_input", "parameter_grad"]


class GradientLogger(SiteLogger):
    """Logs statistics, and histograms if asked, of the gradients at the selected modules.

    The gradients are those of the loss that Lightning back-propagates: under `accumulate_grad_batches=k` it has
    been divided by k. `grad_output` is the gradient with respect to what a module returned, `grad_input` what the
    module passes back to its inputs (where an input also goes elsewhere, as into a residual branch, that is this
    module's part of its gradient), `parameter_grad` the gradient of each of its parameters when the optimizer
    steps, accumulated and unscaled, before Lightning clips it. Tags are `gradient_<statistic>/<module>`,
    `input_gradient_<statistic>/<module>` and `parameter_gradient_<statistic>/<parameter>`; `gradients/`,
    `input_gradients/` and `parameter_gradients/` for histograms.

    Args:
        modules: Pattern or patterns over dotted module names, relative to the LightningModule. `*` stays within
            one name, `**` crosses dots, a leading `!` excludes, a leading `re:` is a regular expression. Left out:
            every leaf module (for `parameter_grad` every module that owns parameters), or, with `types`, every
            module of those types.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, a leading `!` excludes.
        roles: Which gradients: `grad_output`, `grad_input`, `parameter_grad`, or several.
        every_n_steps: Measure and log every this many optimizer steps. Left out: the Trainer's
            `log_every_n_steps`.
        statistics: Names from `mean std var min max abs_max abs_mean rms l1 l2 zero_fraction nonfinite_count
            nan_count inf_count`, and your own: a `hookboard.Statistic` or the dotted path of one.
        histogram: Whether to log histograms too. They cost more than all statistics together.

    Raises:
        ValueError: At construction: an unknown statistic or role, or an `every_n_steps` below 1. At fit start: a
            pattern or type that matches no module, or `parameter_grad` for modules that own no parameter.

    Example:
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
    ) -> None:
        super().__init__(modules, types, every_n_steps, statistics, histogram)
        self.roles = roles
        resolve_roles(roles, get_args(GradientRole))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Select, resolve and attach; see `SiteLogger`. Says so where the gradients will carry a scale."""
        super().on_fit_start(trainer, pl_module)
        scaled = {"grad_output", "grad_input"} & set(resolve_roles(self.roles, get_args(GradientRole)))
        if scaled and getattr(trainer.precision_plugin, "scaler", None) is not None:
            rank_zero_warn(
                f"hookboard: {self._name}: {' and '.join(sorted(scaled))} carry the scale of the GradScaler "
                "(parameter_grad does not)."
            )

    def _watch(self, pl_module: LightningModule, recorder: Recorder) -> Watch:
        roles = resolve_roles(self.roles, get_args(GradientRole))
        hooked = [role for role in roles if role != "parameter_grad"]
        taps = Taps(
            select(pl_module, self.modules, self.types) if hooked else {}, hooked, recorder.open, recorder.trace
        )
        parameters = {}
        if "parameter_grad" in roles:
            parameters = own_parameters(select(pl_module, self.modules, self.types, owning="parameters"))
        of_parameters: list[tuple[str, Role]] = [(name, "parameter_grad") for name in parameters]
        return Watch(recorder, taps, parameters, sites=[*taps.expected(), *of_parameters])

    def _before_optimizer_step(self, watch: Watch, optimizer: Optimizer) -> None:
        for name, parameter in stepped_by(optimizer, watch.parameters).items():
            if parameter.grad is not None:
                watch.recorder.open(Site(name, "parameter_grad"))(parameter.grad)
