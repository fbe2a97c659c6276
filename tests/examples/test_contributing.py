"""The example of CONTRIBUTING.md works as it stands there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys import Toy, batches, fit, mlp

from hookboard import Finding, HealthMonitor, Rule, Run

EXAMPLES = re.findall(r"```python\n(.*?)```", Path("CONTRIBUTING.md").read_text(), re.DOTALL)

pytestmark = pytest.mark.trains


def test_a_health_rule():
    (example,) = EXAMPLES
    namespace = {"Iterator": Iterator, "Rule": Rule, "Run": Run, "Finding": Finding, "LARGE": 0.0}
    exec(example, namespace)
    monitor = HealthMonitor(rules=namespace["HUGE_OUTPUTS"], every_n_steps=1, window=1)
    fit(None, Toy(mlp()), batches(8, 8), monitor)
    assert {verdict.rule for verdict in monitor.verdicts} == {"huge_outputs"}
