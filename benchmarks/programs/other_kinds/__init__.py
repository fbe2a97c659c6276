"""Programs with a training step of their own: reinforcement learning, adversaries, language models, graphs.

They are what is left of 93 faulty and 62 healthy programs that were run blind: the first faulty and the first healthy
one of each kind, but no healthy one whose method a recipe of `benchmarks/recipes` has. The others, and what had been
left out before, are in the history: commit cdb4ef15, `unseen`, `unseen_later` and `unseen_language`.
"""
