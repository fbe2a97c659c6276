"""The tab in TensorBoard: `HookboardPlugin` answers the page's requests from what event files hold.

`Board` makes the answers from a `Source`, for the tab and for a report.
Nothing here imports torch or Lightning: TensorBoard loads the plugin at every start.
"""

from hookboard.board.board import Answer, Bands, Board
from hookboard.board.logged_run import LoggedRun, loss_tag, natural_key
from hookboard.board.plugin import STATIC, HookboardPlugin, packed_plotly, picture_type
from hookboard.board.source import LastPoint, RefusalError, Source, cells_of, columns_for

__all__ = [
    "STATIC",
    "Answer",
    "Bands",
    "Board",
    "HookboardPlugin",
    "LastPoint",
    "LoggedRun",
    "RefusalError",
    "Source",
    "cells_of",
    "columns_for",
    "loss_tag",
    "natural_key",
    "packed_plotly",
    "picture_type",
]
