"""Readings, pictures and texts on their way to a logger."""
