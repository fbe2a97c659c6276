"""A script for each project of `catalogue.py`, of at most 40 lines; `inside.py` says what is in it."""
