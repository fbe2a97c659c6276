"""Writes the page of a run, as `hookboard report` makes it, at the end of a fit."""

from hookboard.base.messages import inform, warn_switched_off
from hookboard.writers import Entry, EventFiles, Loggers

REPORT = "report"


class ReportAtEnd:
    """The page of a run, made from its event files.

    Args:
        loggers: what the page is written to.
    """

    def __init__(self, loggers: Loggers) -> None:
        self._loggers = loggers
        self._files = EventFiles(loggers)

    def write(self, step: int | None) -> None:
        """Write the page to all loggers; an error is one warning.

        Args:
            step: the step to write it at; None to write no page, because nothing was looked at.
        """
        from hookboard.board import page_in  # it imports TensorBoard's readers

        try:
            folder = self._files.folder()
            page = None if step is None or folder is None else Entry(step, pages={REPORT: page_in(folder)})
            self._files.close()
            if page is not None:
                self._loggers.write(page)
                if places := self._loggers.places_of_page(REPORT):
                    inform(f"HealthMonitor wrote the report of this run: {'; '.join(places)}")
        except Exception as error:  # a file or a logger may fail; the fit itself is over
            warn_switched_off("HealthMonitor's report", error)
        finally:
            self._files.close()
