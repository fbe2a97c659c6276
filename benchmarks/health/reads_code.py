"""`HealthMonitor` as users have it: it reads the code of the first step too, where the traces have numbers alone."""

from benchmarks.health.alarms import Alarm
from benchmarks.health.judge import alarms_of

from hookboard import HealthMonitor


class ReadsCode(HealthMonitor):
    """Measures as often as the traces do."""

    def __init__(self) -> None:
        super().__init__(every_n_steps=5)

    @property
    def alarms(self) -> list[Alarm]:
        """Its verdicts that are alarms."""
        return alarms_of(self.verdicts)
