"""The tab in TensorBoard: `HookboardPlugin` answers the page's requests from what event files hold.

Nothing here imports torch or Lightning: TensorBoard loads the plugin at every start.
"""

from hookboard.board.plugin import HookboardPlugin

__all__ = ["HookboardPlugin"]
