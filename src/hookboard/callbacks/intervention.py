"""Changing what flows."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, get_args

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from hookboard.callbacks.evaluation import EvaluationHooks
from hookboard.callbacks.trainer import logged_step, running_stage, warn, without_trainer
from hookboard.hooks.compiled import run_eagerly
from hookboard.hooks.edits import EditRole, Edits
from hookboard.hooks.rules import EditRule
from hookboard.messages import chosen
from hookboard.selection import select
from hookboard.sites import Stage
from hookboard.writers.loggers import Entry, Loggers


class Intervention(EvaluationHooks):
    """Changes inputs, outputs or gradients of the selected modules by a rule, never in place.

    Loggers in the same Trainer read what the rule has made of a tensor, wherever they stand in the list. Compiled code
    runs uncompiled in the batches that are changed. Gradients are changed as they come: under a GradScaler they carry
    its scale, and under accumulation they are those of each batch. What is changed is written to the log as text, once,
    under `interventions/<role>`.

    Args:
        rule: What is done: `hookboard.Scale`, `Clamp`, `ClipNorm`, `Zero`, `Noise` or `Replace` (in YAML by
            `class_path` and `init_args`), or any function that takes a tensor and returns another of the same shape,
            type and device (in YAML its dotted path).
        modules: Pattern or patterns over dotted module names, relative to the LightningModule. `*` stays within one
            name, `**` crosses dots, a leading `!` excludes, a leading `re:` is a regular expression. Left out: every
            leaf module, or, with `types`, every module of those types.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, a leading `!` excludes.
        role: `input`, `output`, `grad_input` (what a module passes back) or `grad_output` (what arrives at its output).
        stages: Where: `train`, `validate`, `test`, `predict`, or several; gradients in `train` alone.
        first_step: The first optimizer step that is changed, counted from 0; within a fit, for evaluations too.
        last_step: The last one. Left out: all that follow.

    Raises:
        ValueError: At construction: an unknown role or stage, gradients outside of `train`, or steps in the wrong
            order. At fit start: a pattern or type that matches no module, or a module that cannot be edited.
        LookupError: After the first batch of a stage that was to be changed: nothing of a module was.

    Example:
        >>> from hookboard import Zero
        >>> Intervention(Zero(channels=[3]), "backbone.layer1", stages=["train", "validate"]).rule
        Zero(channels=[3], dim=1)
    """

    def __init__(
        self,
        rule: EditRule | Callable[[Tensor], Tensor],
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        role: EditRole = "output",
        stages: Stage | Sequence[Stage] = "train",
        first_step: int = 0,
        last_step: int | None = None,
    ) -> None:
        super().__init__()
        chosen("roles", role, get_args(EditRole))
        elsewhere = set(chosen("stages", stages, get_args(Stage))) - {"train"}
        if role.startswith("grad") and elsewhere:
            raise ValueError(f"role={role!r}, stages={stages!r}: there are gradients in 'train' alone.")
        if first_step < 0 or (last_step is not None and last_step < first_step):
            raise ValueError(f"first_step={first_step!r}, last_step={last_step!r}: give 0 or more, in this order.")
        if not callable(rule):
            raise ValueError(f"rule={rule!r}: give one of hookboard's rules, or a function from tensor to tensor.")
        self.rule = rule
        self.modules = modules
        self.types = types
        self.role = role
        self.stages = stages
        self.first_step = first_step
        self.last_step = last_step
        self._selected: dict[str, nn.Module] = {}
        self._until_end = ExitStack()
        self._checked: set[str] = set()
        self._edits: Edits | None = None
        self._is_told = False

    def __getstate__(self) -> dict[str, Any]:
        """The configuration; a copy changes nothing until a fit of its own starts."""
        nothing = {"_selected": {}, "_until_end": ExitStack(), "_checked": set(), "_edits": None, "_is_told": False}
        return without_trainer(self.__dict__) | nothing

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Select, and find out whether the modules can be edited.

        Raises:
            ValueError: they cannot, or the configuration fits none.
        """
        self._let_go()
        self._selected = select(pl_module, self.modules, self.types)
        edits = Edits(self._selected, self.role, self.rule)
        edits.attach()
        edits.detach()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Hook the modules, if this batch is to be changed."""
        self._begin(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Unhook them.

        Raises:
            LookupError: a module has not been changed in the first batch that was to be changed.
        """
        self._end(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Unhook: an epoch that the module itself cuts short has no end of its last batch."""
        self._until_end.close()
        self._edits = None

    def _on_loop_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Select, where evaluation runs by itself and not within a fit."""
        if trainer.state.fn != TrainerFn.FITTING:
            self.on_fit_start(trainer, pl_module)

    def _on_loop_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int
    ) -> None:
        """Hook the modules, if this batch is to be changed."""
        self._begin(trainer)

    def _on_loop_batch_end(self, trainer: Trainer) -> None:
        """Unhook them; raises as `on_train_batch_end` does."""
        self._end(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say so where the fit was to be changed and no batch of it was."""
        stages = chosen("stages", self.stages, get_args(Stage))
        if not self._checked and {"train", "validate"} & set(stages):
            warn(f"Intervention has changed nothing in this fit: {self._description()}.")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Unhook: Lightning does not call `teardown` after a failure."""
        self._let_go()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Unhook."""
        self._let_go()

    def _begin(self, trainer: Trainer) -> None:
        self._until_end.close()
        step, is_fit = logged_step(trainer), trainer.state.fn == TrainerFn.FITTING
        is_within = self.first_step <= step and (self.last_step is None or step <= self.last_step)
        if running_stage(trainer) not in chosen("stages", self.stages, get_args(Stage)) or (is_fit and not is_within):
            return
        self._edits = Edits(self._selected, self.role, self.rule)
        self._until_end.enter_context(run_eagerly())
        self._until_end.callback(self._edits.detach)
        self._edits.attach()
        if not self._is_told and trainer.is_global_zero:
            self._is_told = True
            text = {f"interventions/{self.role}": self._description()}
            Loggers(trainer.loggers, type(self).__name__).write(Entry(step, texts=text))

    def _end(self, trainer: Trainer) -> None:
        edits, self._edits = self._edits, None
        self._until_end.close()
        if edits is not None and running_stage(trainer) not in self._checked:
            self._checked.add(running_stage(trainer))
            edits.check_made()

    def _description(self) -> str:
        last = "the last" if self.last_step is None else self.last_step
        stages = ", ".join(chosen("stages", self.stages, get_args(Stage)))
        names = ", ".join(f"`{name}`" for name in self._selected)
        name = getattr(self.rule, "__qualname__", None) or repr(self.rule)
        return f"`{name}` on the {self.role} of {names}; {stages}; steps {self.first_step} to {last}"

    def _let_go(self) -> None:
        self._until_end.close()
        self._selected, self._edits, self._checked, self._is_told = {}, None, set(), False
