"""The base class of all callbacks, and the loops that call it: of a Lightning Trainer, and of a loop without one.

It also keeps errors away from training, and saves what callbacks remember in checkpoints (`callback.py`).
"""
