"""Pictures of what a model holds and computes: from tensors to what a logger can show."""
