"""A report in a browser, opened from a file."""

from urllib.parse import quote

from board.browser import PATIENCE, Tab, hash_of


class ReportTab(Tab):
    """A report as a `Tab`, so that the tests of the tab can look at it."""

    def __init__(self, browser, path, size=(1440, 900), state=None, **options):
        self.address = f"file://{quote(str(path))}"
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, accept_downloads=True, **options
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.faults = []
        self.requests = []
        self.page.on("console", lambda message: self.faults.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("dialog", self._asked)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"{self.address}#{hash_of(state or {})}")
        self.frame = self.page
        self.wait()
