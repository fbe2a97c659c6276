"""Hooks on modules and gradients that show their tensors to observers; they change nothing."""

from hookboard.hooks.backward_calls import hearing_backward
from hookboard.hooks.fused import fused_layers, unhooked
from hookboard.hooks.gradients import Observer, Switch, watch_output, why_no_gradient
from hookboard.hooks.hooked import EDITS_GRADIENTS, EDITS_VALUES, READS_BEFORE_EDITS, hooked
from hookboard.hooks.module_tap import UNKNOWN, around_measuring
from hookboard.hooks.own_call import is_own_call, own_call, spare_of
from hookboard.hooks.taps import NO_GRADIENT, Taps

__all__ = [
    "EDITS_GRADIENTS",
    "EDITS_VALUES",
    "NO_GRADIENT",
    "READS_BEFORE_EDITS",
    "UNKNOWN",
    "Observer",
    "Switch",
    "Taps",
    "around_measuring",
    "fused_layers",
    "hearing_backward",
    "hooked",
    "is_own_call",
    "own_call",
    "spare_of",
    "unhooked",
    "watch_output",
    "why_no_gradient",
]
