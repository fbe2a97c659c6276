"""The tab in TensorBoard: `HookboardPlugin` answers the page's requests from what event files hold.

`Board` makes the answers from a `Source`, for the tab and for a report.
Nothing here imports torch or Lightning: TensorBoard loads the plugin at every start.
"""

from hookboard.board.command import main
from hookboard.board.one_file import page_in
from hookboard.board.plugin import STATIC, HookboardPlugin, packed_plotly
from hookboard.board.readback import Measured, ReadRun, read
from hookboard.board.source import Source

__all__ = ["STATIC", "HookboardPlugin", "Measured", "ReadRun", "Source", "main", "packed_plotly", "page_in", "read"]
