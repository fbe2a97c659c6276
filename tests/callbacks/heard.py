"""What hookboard says in a run."""

import warnings

from hookboard import HookboardWarning


def warnings_of(run):
    """The warnings of ours in one run; others are left out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught if issubclass(one.category, HookboardWarning)]
