"""`ActivationLogger`: outputs and inputs of modules."""

from collections.abc import Sequence
from typing import Literal, get_args

from torch import nn

from hookboard.base.checks import chosen
from hookboard.callbacks.measurement_state import MeasurementState
from hookboard.callbacks.numbers import SiteLogger
from hookboard.loops.callback import Selection
from hookboard.measure.statistics import DEFAULT, Statistic
from hookboard.model.selection import select
from hookboard.model.sites import Stage

ActivationRole = Literal["output", "input", "attention_logit", "attention_entropy"]


class ActivationLogger(SiteLogger[MeasurementState]):
    """Logs statistics, and optionally histograms, of the outputs and inputs of the selected modules.

    Everything that a module returns during one optimizer step counts as one set of numbers, across all elements, calls
    and micro-batches. It is read in the forward hook, before an in-place operation can change it. Tags are
    `activation_<statistic>/<module>` for outputs and `input_<statistic>/<module>` for inputs, `activations/<module>`
    and `inputs/<module>` for histograms. If a module takes or returns several tensors, each has its own numbers, and
    `/<index or key>` follows the module's name. Tags of stages other than training begin with the stage:
    `validate_activation_std/<module>`. If a module is replaced during the fit, the new one is watched from the next
    logged step on, and a warning says so.

    `dead_fraction` exists only for tensors with channels; if there are more than 1024, it uses every k-th.

    Args:
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default:
            every leaf module, or, with `types`, every module of those types.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, and a leading `!` excludes.
        roles: Which tensors are measured, one name or several. Here: `output` (what a module returns) and `input` (what
            it takes). Also, for up to 64 queries of the first sequence in each call of torch's
            `scaled_dot_product_attention`, `attention_logit` (the largest logit of a query) and `attention_entropy` (of
            its weights, in nats). A call belongs to the module that makes it: a selected module, or one inside or
            around it. The logit of a query that is fully masked is -Inf, and so is the entropy of one that sees fewer
            than two keys. Calls in compiled graphs are not seen.
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
        stages: In which stages, one or several of `train`, `validate`, `test` and `predict`. Here, `validate` stands
            for validation both within a fit and in `Trainer.validate`, and each evaluation gives one reading over all
            its batches.

    Raises:
        ValueError: At construction: an unknown statistic, role or stage, or an `every_n_steps` below 1. At fit start: a
            pattern or type that matches no module of the model.

    Examples:
        >>> ActivationLogger("backbone.layer*.**", types="Conv2d", statistics=["std", "abs_max"]).modules
        'backbone.layer*.**'
    """

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        roles: ActivationRole | Sequence[ActivationRole] = "output",
        every_n_steps: int | None = None,
        statistics: str | Sequence[str | Statistic] = DEFAULT,
        histogram: bool = False,
        sync_dist: bool = True,
        stages: Stage | Sequence[Stage] = "train",
    ) -> None:
        super().__init__(modules, types, every_n_steps, statistics, histogram, sync_dist, stages)
        self.roles = roles
        self._roles()

    def _roles(self) -> list[ActivationRole]:
        return chosen("roles", self.roles, get_args(ActivationRole))

    def _select(self, model: nn.Module) -> Selection:
        return Selection(select(model, self.modules, self.types))
