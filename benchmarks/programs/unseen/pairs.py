"""Distillation, contrastive and metric learning, meta-learning, averaged teachers."""
