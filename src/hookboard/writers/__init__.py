"""Writes numbers, pictures and texts to loggers: one file for each kind of logger.

`entry.py` is what is written, `loggers.py` writes it to all loggers of a run. To add a logger, write a file with a
function that writes an `Entry` and one that says where it is found, and add a line to `KINDS` in `loggers.py`.
"""
