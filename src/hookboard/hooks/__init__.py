"""Hooks on modules and on gradients: taps, which read what flows, and edits, which change it."""

from hookboard.hooks.taps import UNKNOWN, Taps

__all__ = ["UNKNOWN", "Taps"]
