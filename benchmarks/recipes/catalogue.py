"""All recipes."""

from typing import Any

from benchmarks.recipes import generative, science, text, vision  # noqa: F401  # each enters its recipes
from benchmarks.recipes.recipe import RECIPES, run

__all__ = ["RECIPES", "run_by_name"]


def run_by_name(name: str, with_monitor: bool = True) -> dict[str, Any]:
    """Train the recipe of this name, also in a process that has imported nothing yet; returns its row."""
    return run(next(recipe for recipe in RECIPES if recipe.name == name), with_monitor)
