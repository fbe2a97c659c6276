"""All recipes."""

from benchmarks.recipes import generative, science, text, vision  # noqa: F401  # each enters its recipes
from benchmarks.recipes.recipe import RECIPES

__all__ = ["RECIPES"]
