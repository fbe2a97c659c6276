"""Healthy trainings, among them those that fool others: sparse, frozen, clipped, noisy, finished or not yet begun."""

from benchmarks.health.controls import changes, inputs, models, norms, schedules
from benchmarks.health.controls.registry import CONTROLS, Control

__all__ = ["CONTROLS", "Control", "changes", "inputs", "models", "norms", "schedules"]
