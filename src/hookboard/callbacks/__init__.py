"""The public callbacks, one file each.

Their base class, with the methods that they override, is in `loops/callback.py`.
`numbers.py` is the base of callbacks that log numbers, `pictures.py` of those that log pictures.
"""
