"""Hooks on modules and on gradients: taps, which read tensors, and edits, which change them."""

from hookboard.hooks.call_tree import MODEL, Fault, Values, values_of
from hookboard.hooks.calls import UNKNOWN
from hookboard.hooks.edits import Edit, EditRole, Edits, edited_gradient
from hookboard.hooks.fused import fused_layers
from hookboard.hooks.gradients import Observer, Switch, watch_output, why_no_gradient
from hookboard.hooks.graphs import forget_graphs, forget_graphs_without_hooks
from hookboard.hooks.nonfinite import Search
from hookboard.hooks.own_call import is_own_call, own_call
from hookboard.hooks.rules import Clamp, ClipNorm, EditRule, Noise, Replace, Rule, Scale, Zero, apply_rule, check_rule
from hookboard.hooks.taps import NO_GRADIENT, Taps

__all__ = [
    "MODEL",
    "NO_GRADIENT",
    "UNKNOWN",
    "Clamp",
    "ClipNorm",
    "Edit",
    "EditRole",
    "EditRule",
    "Edits",
    "Fault",
    "Noise",
    "Observer",
    "Replace",
    "Rule",
    "Scale",
    "Search",
    "Switch",
    "Taps",
    "Values",
    "Zero",
    "apply_rule",
    "check_rule",
    "edited_gradient",
    "forget_graphs",
    "forget_graphs_without_hooks",
    "fused_layers",
    "is_own_call",
    "own_call",
    "values_of",
    "watch_output",
    "why_no_gradient",
]
