"""The tab in TensorBoard: `HookboardPlugin` answers the page's questions from what event files hold.

It knows nothing of hooks, Lightning or torch: TensorBoard loads it at every start.
"""

from hookboard.board.plugin import HookboardPlugin

__all__ = ["HookboardPlugin"]
