"""Tensors on their way through modules, without a Trainer: kept (`capture`), changed (`Edit`), and made into maps.

`edits.py` has the rules that change tensors. For class-activation maps `attribute.py` finds the classifier and the
layer, and `methods.py` has the methods in one table.
"""
