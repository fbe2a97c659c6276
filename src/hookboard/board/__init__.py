"""Event files as the tab in TensorBoard, as a page in one file, in the terminal, and as arrays (`read`).

`Board` makes the answers from a `Source`; `plugin.py` serves them to the page, and `one_file.py` puts both into a file.
Nothing here imports torch or Lightning at once: TensorBoard loads the plugin at every start.
"""
