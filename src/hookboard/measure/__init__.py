"""The path of a number: hooks on modules, tensors measured as rows of a table, the table merged into readings.

A due step:

1. `taps.py` hooks the modules, and shows their tensors to the observer of each site, which `Table.open` has returned.
2. `Table` (`table.py`) finds out once how the tensors of a site are read, and merges each into the site's row in a
   `Slab` (`slab.py`), the memory for all rows on a device. The kernel in C does that (`native.py`), or that of Triton
   (`on_gpu.py`), or where no kernel reads the tensor, torch (`by_torch.py`).
3. `Table.send` starts the copy of the slab to the host. Nothing waits: it returns a function that does.
4. That function merges the rows with those of other ranks, computes the statistics (`statistics.py`), and returns the
   `Readings` (`row.py`), whose columns loggers write and rules judge. It is called at once where nothing must be waited
   for; where rows are merged over ranks or lie on another device, at the end of the next batch.

To add a statistic, add a line to `FORMULAS` in `statistics.py`.
"""
