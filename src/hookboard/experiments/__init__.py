"""Trains a model for a few steps on one batch, to see whether it learns; then restores it."""
