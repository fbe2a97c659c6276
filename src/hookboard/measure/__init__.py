"""A tensor as a row: what is known of its numbers, in a form that merges exactly, and what follows from it."""
