"""Writes numbers, pictures and texts to loggers.

`entry.py` is what is written, `loggers.py` writes it to all loggers of a run, with the functions of
`lightning_loggers.py` and `tensorboard.py`. CONTRIBUTING.md says how to add one.
"""
