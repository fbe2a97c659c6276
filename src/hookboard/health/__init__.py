"""From readings to verdicts: which layer is sick, since when and why.

`look.py` is what is measured at one step, `run_table.py` the numbers of all layers over the run, and `run.py` all that
rules may look at. `rules/` has the rules, one file for each family. `judge.py` asks them and makes verdicts of what
lasts, `causes.py` says which verdict explains which, and `report.py` and `page.py` put them into words and charts.
To add a rule, see `rules/__init__.py`.
"""

from hookboard.health.cell import Verdicts, cell
from hookboard.health.checkpoint import FORMS, parts_of, restore_judge
from hookboard.health.judge import Judge
from hookboard.health.look import MEASURED_VALUES_MAX, HeldBack, Look, Loss, NeedsHistogram, Stepped, every_unit
from hookboard.health.page import VERDICT, Page
from hookboard.health.report import closing, ended_by, news
from hookboard.health.rule import Rule, Severity, Symptom, Verdict, check_stop_on, rules_of, sentence
from hookboard.health.rules import RULES
from hookboard.health.rules.numerics import Nonfinite, Pass, before_nonfinite, first_of
from hookboard.health.rules.training_step import SCALE_TARGETS, STEP
from hookboard.health.run import Run, StepFacts

__all__ = [
    "FORMS",
    "MEASURED_VALUES_MAX",
    "RULES",
    "SCALE_TARGETS",
    "STEP",
    "VERDICT",
    "HeldBack",
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
    "StepFacts",
    "Stepped",
    "Symptom",
    "Verdict",
    "Verdicts",
    "before_nonfinite",
    "cell",
    "check_stop_on",
    "closing",
    "ended_by",
    "every_unit",
    "first_of",
    "news",
    "parts_of",
    "restore_judge",
    "rules_of",
    "sentence",
]
