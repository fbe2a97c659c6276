"""From readings to verdicts: which layer is sick, since when and why.

`look.py` is what is measured at one step, `arrays.py` the same as arrays over all layers, and `run.py` the history of
the run, all that rules may look at. `rules/` has the rules, one file for each family. `judge.py` asks them and makes
verdicts of what lasts, `causes.py` says which verdict explains which, and `report.py` and `page.py` put them into words
and charts. `rules/__init__.py` lists the families; CONTRIBUTING.md says how to add a rule.
"""
