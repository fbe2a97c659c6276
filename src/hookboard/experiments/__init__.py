"""Experiments on a copy: whether a model learns, at which rate, and from which targets. Everything is put back."""

from hookboard.experiments.batches import read_apart
from hookboard.experiments.experiment import Setting, run_experiments
from hookboard.experiments.one_page import BATCHES, SECONDS, CheckupReport, check_up, checkup

__all__ = ["BATCHES", "SECONDS", "CheckupReport", "Setting", "check_up", "checkup", "read_apart", "run_experiments"]
