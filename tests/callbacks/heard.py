"""What hookboard says in a run, and what a monitor has seen of it."""

import warnings

from toys import fit

from hookboard import HealthMonitor, HookboardWarning, Rule


def warnings_of(run):
    """The warnings of ours in one run; others are left out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught if issubclass(one.category, HookboardWarning)]


def alarms_of(model, data, **options):
    """The alarms of a monitor that looks at each step."""
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, model, data, monitor, **options)
    return [one for one in monitor.verdicts if one.severity == "alarm"]


def looks_of(model, data, *others, keep=lambda run: run.now, **options):
    """The looks of a monitor, or what else is kept of them."""
    kept = []
    monitor = HealthMonitor(rules=Rule("keep", lambda run: kept.append(keep(run)) or ()))
    fit(None, model, data, monitor, *others, **options)
    return kept
