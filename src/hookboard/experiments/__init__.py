"""Trains a model for a few steps to see whether it learns, and at which rate; then restores it."""

from hookboard.experiments.batches import read_apart
from hookboard.experiments.experiment import CheckupReport, Setting, experiment
from hookboard.experiments.one_page import BATCHES, SECONDS, check_up, checkup

__all__ = [
    "BATCHES",
    "SECONDS",
    "CheckupReport",
    "Setting",
    "check_up",
    "checkup",
    "experiment",
    "read_apart",
]
