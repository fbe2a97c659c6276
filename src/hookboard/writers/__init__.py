"""Writes numbers, pictures and texts to loggers.

`entry.py` is what is written, `loggers.py` writes it to all loggers of a run. To add a logger, write a function that
writes an `Entry` and one that says where it is found, as in `lightning_loggers.py`, and add a line to `KINDS` in
`loggers.py`.
"""
