"""Ends with a thread that waits for another rank, which goes while the interpreter ends: python exits.py STORE RANK.

The exit status of rank 0 tells whether it has survived that.
"""

import sys
import threading
import time
from contextlib import suppress

import torch
import torch.distributed as dist

from hookboard.ranks import Ranks, RanksLostError


class Late:
    """Is deleted when the interpreter ends, and takes its time."""

    def __del__(self):
        self.sleep(3)

    sleep = staticmethod(time.sleep)


def wait_for_the_other(ranks):
    with suppress(RanksLostError):
        ranks.merge(torch.ones(2, 1, dtype=torch.float64), lambda parts: parts.sum(0))


if __name__ == "__main__":
    store, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ranks = Ranks()
    if rank:
        time.sleep(2)
        ranks.close()
    else:
        threading.Thread(target=wait_for_the_other, args=[ranks], daemon=True).start()
        time.sleep(0.5)
        late = Late()
