"""Event files as the tab in TensorBoard, as a page in one file, in the terminal, and as arrays (`read`).

`Board` makes the answers from a `Source`; `plugin.py` serves them to the page, and `one_file.py` puts both into a file.
Nothing here imports torch or Lightning at once: TensorBoard loads the plugin at every start.
"""

from hookboard.board.command import main
from hookboard.board.one_file import page_in
from hookboard.board.plugin import STATIC, HookboardPlugin, packed_plotly
from hookboard.board.readback import Measured, ReadRun, read
from hookboard.board.source import Source

__all__ = ["STATIC", "HookboardPlugin", "Measured", "ReadRun", "Source", "main", "packed_plotly", "page_in", "read"]
