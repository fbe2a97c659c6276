"""Judges the judge: faults planted in small trainings, healthy trainings that look sick, and other tools' rules."""
