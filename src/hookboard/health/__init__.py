"""From readings to verdicts: which layer is sick, since when and why.

`look.py` is what is measured at one step, `run_table.py` the numbers of all layers over the run, and `run.py` all that
rules may look at. `rules/` has the rules, one file for each family. `judge.py` asks them and makes verdicts of what
lasts, `causes.py` says which verdict explains which, and `report.py` and `page.py` put them into words and charts.
To add a rule, see `rules/__init__.py`.
"""

from hookboard.health.cell import Verdicts, cell
from hookboard.health.judge import Judge
from hookboard.health.look import (
    MEASURED_VALUES_MAX,
    Apart,
    HeldBack,
    Look,
    Loss,
    NeedsHistogram,
    Stepped,
    WorstRows,
    every_unit,
)
from hookboard.health.page import VERDICT, Page
from hookboard.health.report import closing, ended_by, news
from hookboard.health.robust import median
from hookboard.health.rule import Finding, Rule, Severity, Verdict, check_stop_on, rules_in, rules_of, sentence
from hookboard.health.rules import LOOK_RULES
from hookboard.health.rules.numerics import Nonfinite, Pass, before_nonfinite
from hookboard.health.rules.routing import uneven
from hookboard.health.rules.shared import SCALE_TARGETS
from hookboard.health.run import Router, Run, StepFacts
from hookboard.health.spikes import SPIKE_HISTORY_STEPS

__all__ = [
    "LOOK_RULES",
    "MEASURED_VALUES_MAX",
    "SCALE_TARGETS",
    "SPIKE_HISTORY_STEPS",
    "VERDICT",
    "Apart",
    "Finding",
    "HeldBack",
    "Judge",
    "Look",
    "Loss",
    "NeedsHistogram",
    "Nonfinite",
    "Page",
    "Pass",
    "Router",
    "Rule",
    "Run",
    "Severity",
    "StepFacts",
    "Stepped",
    "Verdict",
    "Verdicts",
    "WorstRows",
    "before_nonfinite",
    "cell",
    "check_stop_on",
    "closing",
    "ended_by",
    "every_unit",
    "median",
    "news",
    "rules_in",
    "rules_of",
    "sentence",
    "uneven",
]
