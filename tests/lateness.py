"""What a due step has measured comes some time later, as of a GPU or with several ranks."""

from hookboard.base.jobs import Jobs


def make_late(monkeypatch, questions=7):
    """Have each job of a callback wait until it was asked so many times whether it can go on."""
    add = Jobs.add

    def late(steps):
        for _ in range(questions):
            yield
        yield from steps

    monkeypatch.setattr(Jobs, "add", lambda jobs, steps, *others: add(jobs, late(steps), *others))
