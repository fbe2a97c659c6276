"""Experiments on a copy: whether a model learns, at which rate, and from which targets. Everything is put back."""

from hookboard.experiments.attempt import Start
from hookboard.experiments.batches import read_apart
from hookboard.experiments.experiment import Experiments, Setting, experiment, look_at_targets, run_experiments, why_not
from hookboard.experiments.one_page import BATCHES, SECONDS, CheckupReport, check_up, checkup

__all__ = [
    "BATCHES",
    "SECONDS",
    "CheckupReport",
    "Experiments",
    "Setting",
    "Start",
    "check_up",
    "checkup",
    "experiment",
    "look_at_targets",
    "read_apart",
    "run_experiments",
    "why_not",
]
