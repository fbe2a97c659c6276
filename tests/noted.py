"""Variables of a file that a step changes, see `tracing/test_no_trace.py`."""

COUNT = 0


class Tally:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1


TALLY = Tally()
