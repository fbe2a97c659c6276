"""From readings to verdicts: which layer is sick, since when and why.

`look.py` is what is seen at one step, `sheet.py` the same as arrays over all layers, `run.py` what has been seen so
far, `rules/` the rules, one file for each family, `judge.py` asks them and makes verdicts of what lasts. To add a rule,
see `rules/__init__.py`.
"""

from hookboard.health.judge import ASKED_AT_FIRST, Judge
from hookboard.health.kept import FORMS, go_on, parts_of
from hookboard.health.look import Look, Loss, Stepped
from hookboard.health.measured import MOST_VALUES, NeedsHistogram, every_unit
from hookboard.health.nonfinite import Nonfinite, Pass, before_nonfinite, first_of
from hookboard.health.page import VERDICT, Page
from hookboard.health.report import closing, ended_by, news
from hookboard.health.rule import Rule, check_stop_on, rules_of
from hookboard.health.rules import RULES
from hookboard.health.run import Run
from hookboard.health.verdict import Severity, Symptom, Verdict

__all__ = [
    "ASKED_AT_FIRST",
    "FORMS",
    "MOST_VALUES",
    "RULES",
    "VERDICT",
    "Judge",
    "Look",
    "Loss",
    "NeedsHistogram",
    "Nonfinite",
    "Page",
    "Pass",
    "Rule",
    "Run",
    "Severity",
    "Stepped",
    "Symptom",
    "Verdict",
    "before_nonfinite",
    "check_stop_on",
    "closing",
    "ended_by",
    "every_unit",
    "first_of",
    "go_on",
    "news",
    "parts_of",
    "rules_of",
]
