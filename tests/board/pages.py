"""A report in a browser, opened from a file."""

from urllib.parse import quote

from board.browser import Tab


class ReportTab(Tab):
    """A report as a `Tab`, so that the tests of the tab can look at it."""

    def __init__(self, browser, path, **options):
        super().__init__(browser, f"file://{quote(str(path))}", **options)

    def frame_of(self, page):
        return page

    def _heard(self, message):
        self.faults.append(f"{message.type}: {message.text}")
