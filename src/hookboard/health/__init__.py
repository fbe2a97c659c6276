"""From readings to verdicts: which layer is sick, since when and why.

The path of a finding:

1. A `Look` (`look.py`) is what was measured at one step; `arrays.py` holds the same as arrays over all layers.
2. `Judge.see` (`judge.py`) adds it to the `Run` (`run.py`), the history, which is all that rules may look at, and asks
   the rules (`rules/`, one file for each family). Each yields findings.
3. The findings of one rule at one module are a `Case` (`rule.py`). It is seen, then a note, or an alarm if the loss
   shows harm or the finding is proof. `judge.py` begins with the table of its states.
4. `causes.py` says which case explains which: one alarm for one fault, its effects are notes.
5. Each becomes a `Verdict`. `report.py` and `page.py` put them into words and charts.

What is found outside of the looks, such as the first NaN, comes in by `Judge.add`. `rules/__init__.py` lists the
families; CONTRIBUTING.md says how to add a rule.
"""
