"""What torchtest2 says of the same programs, from one batch of each.

pip install -r benchmarks/programs/requirements.txt
python -m benchmarks.programs --peer
"""

from typing import Any

import torch
from benchmarks.programs.rows import by_name
from benchmarks.programs.trial import Post, batches, built


def checked(name: str) -> dict[str, Any]:
    """Let torchtest2 check a program faulty and fixed; returns its row of the table."""
    post = by_name(name)
    fault, fix = (failures(post, fixed) for fixed in (False, True))
    return {"post": name, "found": bool(fault), "false_alarm": bool(fix), "failures": fault, "failures_on_fix": fix}


def failures(post: Post, fixed: bool) -> list[str]:
    """The checks that fail, with what they say; warnings do not count."""
    import torchtest2  # type: ignore[import-not-found]  # an optional package

    torch.set_num_threads(1)
    program = built(post, fixed, post.seed)
    inputs, targets = next(iter(batches(program)))
    report = torchtest2.check_model(
        program.net, inputs, targets, loss_fn=program.loss, optimizer=program.optimizer(program.net.parameters())
    )
    return [f"{failed.name}: {failed.message}" for failed in report.failures]


def sums(rows: list[dict[str, Any]]) -> str:
    found, wrong = (sum(row[key] for row in rows) for key in ("found", "false_alarm"))
    return f"torchtest2: a check fails on {found} of {len(rows)} programs, and on {wrong} of {len(rows)} fixes"
