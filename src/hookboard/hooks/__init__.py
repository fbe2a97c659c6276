"""Hooks on modules and on gradients: taps, which read what flows, and edits, which change it."""
