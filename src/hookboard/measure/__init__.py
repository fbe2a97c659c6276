"""The whole way of a number: hooks on modules, tensors measured as rows of a table, the table merged into readings.

`taps.py` hooks modules and shows their tensors to an observer, which `Table.open` returns. A `Table` (`table.py`) finds
out once how the tensors of a site are read. From then on it merges each into the site's row in a `Slab` (`slab.py`),
the memory for all rows on a device: by the kernel in C (`native.py`), by that of Triton (`on_gpu.py`), or where no
kernel reads it by torch (`by_torch.py`). `Table.send` starts the copy of the slab to the host, and returns a function
that waits for it, merges the rows with those of other ranks, computes the statistics (`statistics.py`), and returns the
`Readings` (`row.py`), whose columns loggers write and rules judge.

To add a statistic, add a line to `FORMULAS` in `statistics.py`.
"""
