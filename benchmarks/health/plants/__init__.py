"""The faults: one file for each group of the catalogue. Each says what it is and what is a right name of it."""

from benchmarks.health.plants import dead, inputs, numerics, optimizer, signal
from benchmarks.health.plants.registry import PLANTS, Plant, places

__all__ = ["PLANTS", "Plant", "dead", "inputs", "numerics", "optimizer", "places", "signal"]
