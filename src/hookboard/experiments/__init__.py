"""Trains a model for a few steps to see whether it learns, and at which rate; then restores it."""
