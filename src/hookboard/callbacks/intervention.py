"""`Intervention`: changes inputs, outputs or gradients of modules during training or evaluation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from torch import Tensor, nn

from hookboard.base.checks import check_name, check_whole, chosen
from hookboard.base.messages import rank_zero_warn
from hookboard.base.torch_private import run_eagerly
from hookboard.capturing.edits import EditRole, EditRule, Edits, check_rule
from hookboard.loops.callback import HookboardCallback, Selection, StageState
from hookboard.loops.loop import Loop
from hookboard.model.selection import NothingToSelectError, check_selection, select
from hookboard.model.sites import ROLES, Stage
from hookboard.writers.entry import Entry


@dataclass(kw_only=True)
class _EditState(StageState):
    edits: Edits | None = None  # the hooks of the last changed batch
    is_checked: bool = False  # a changed batch has ended, and was checked for modules without a change


class Intervention(HookboardCallback[_EditState]):
    """Changes inputs, outputs or gradients of the selected modules by a rule, never in place.

    The change holds from the start of a batch until all callbacks have seen its end. Loggers in the same Trainer read
    the changed tensors, regardless of their place in the list. Compiled code runs uncompiled in the batches that are
    changed. Gradients are changed when they arrive: under a GradScaler they carry its scale, and under accumulation
    they are those of each batch. The callback is logged once as text, under `interventions/<role>`.

    Args:
        rule: The change: one of hookboard's rules (docs/capture.md), as in `hookboard.Zero()` (in YAML, by `class_path`
            and `init_args`), or any function that takes a tensor and returns a new one of the same shape, dtype and
            device (in YAML, its dotted path).
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default:
            every leaf module, or, with `types`, every module of those types.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, and a leading `!` excludes.
        role: `input`, `output`, `grad_input` (what a module passes back) or `grad_output` (what arrives at its output).
        stages: In which stages, one or several of `train`, `validate`, `test` and `predict`. Here, gradients can be
            changed only in `train`.
        first_step: The first optimizer step that is changed, counted from 0. It also applies to evaluations within a
            fit.
        last_step: The last optimizer step that is changed. Default: there is none.

    Raises:
        ValueError: At construction: an unknown role or stage, gradients outside of `train`, or steps in the wrong
            order. At fit start: a pattern or type that matches no module, or a module that cannot be edited.
        LookupError: After the first changed batch of a stage: a selected module was not changed, because it was not
            called or no gradient arrived.

    Examples:
        >>> from hookboard import Zero
        >>> Intervention(Zero(channels=[3]), "backbone.layer1", stages=["train", "validate"]).rule
        Zero(channels=[3], dim=1)
    """

    verb = "changes"
    state_class = _EditState
    changes_tensors = True
    may_stop_the_run = True

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
        check_rule("rule", rule)
        check_selection(modules, types)
        check_name("role", role, get_args(EditRole))
        check_whole("first_step", first_step, 0, "optimizer steps")
        check_whole("last_step", last_step, 0, "optimizer steps", "to never end")
        elsewhere = set(chosen("stages", stages, get_args(Stage))) - {"train"}
        if ROLES[role].is_gradient and elsewhere:
            raise ValueError(f"role={role!r}, stages={stages!r}: only the stage 'train' has gradients.")
        if last_step is not None and last_step < first_step:
            raise ValueError(f"first_step={first_step!r}, last_step={last_step!r}: last_step is before first_step.")
        self.rule = rule
        self.modules = modules
        self.types = types
        self.role = role
        self.stages = stages
        self.first_step = first_step
        self.last_step = last_step

    # What it does at each point of a run. An error stops the run: without the change it would be another experiment.

    def _stages(self, loop: Loop) -> list[Stage]:
        return chosen("stages", self.stages, get_args(Stage))

    def _select(self, model: nn.Module) -> Selection:
        try:
            selection = Selection(select(model, self.modules, self.types))
        except NothingToSelectError as nothing:
            raise ValueError(f"Intervention changes nothing: {nothing}.") from nothing
        Edits(selection.modules, self.role, self.rule)  # raises where a module cannot be edited
        return selection

    def _why_not(self, loop: Loop) -> str | None:
        return None  # it needs no logger

    def _takes_part(self, loop: Loop) -> bool:
        return True  # each rank changes its own batches

    def _wants(self, loop: Loop, state: _EditState, batch_idx: int, dataloader_idx: int) -> bool:
        step = loop.logged_step
        is_within = self.first_step <= step and (self.last_step is None or step <= self.last_step)
        return is_within or not loop.is_fitting

    def _begin_batch(self, loop: Loop, state: _EditState, batch: Any, batch_idx: int) -> None:
        if loop.is_rank_zero and all(each.edits is None for each in self.states):
            state.loggers.write(Entry(loop.logged_step, texts={f"interventions/{self.role}": f"`{self!r}`"}))
        state.edits = Edits(state.selection.modules, self.role, self.rule)
        state.until_batch_end.enter_context(run_eagerly())
        state.until_batch_end.callback(state.edits.detach)
        state.edits.attach()

    def _end_batch(self, loop: Loop, state: _EditState, has_stepped: bool) -> None:
        if not state.is_checked:
            state.is_checked = True
            assert state.edits is not None
            state.edits.check_made()

    def _end_training(self, loop: Loop, state: _EditState) -> None:
        states = list(self._live.values())
        if state is states[0] and not any(each.is_checked for each in states):
            rank_zero_warn(f"Intervention changed nothing in this fit: {self!r}.")
