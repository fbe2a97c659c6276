"""Healthy trainings as others publish them, made small: what `HealthMonitor` says where nothing is wrong."""
