"""Programs with a training step of their own: reinforcement learning, adversaries, language models, graphs.

Of each kind of training, the first faulty program and the first healthy one are left of the 155 that were run blind.
"""
