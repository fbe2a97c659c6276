"""The tensors themselves, kept without a Trainer."""
