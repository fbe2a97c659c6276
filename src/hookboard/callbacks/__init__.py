"""The public callbacks.

Their base class, with the methods that they override, is in `loops/callback.py`.
`numbers.py` has the callbacks that log numbers and their base, `pictures.py` those that log pictures and theirs.
"""
