"""Ends in the middle of an exchange, in which it tells that it leaves: python exits.py STORE RANK.

The other rank goes while the interpreter ends.

The exit status of rank 0 tells whether it has survived that.
"""

import sys
import time

import torch.distributed as dist

from hookboard.base.ranks import Ranks


class Late:
    """Is deleted when the interpreter ends, and takes its time."""

    def __del__(self):
        self.sleep(3)

    sleep = staticmethod(time.sleep)


if __name__ == "__main__":
    store, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ranks = Ranks()
    if rank:
        time.sleep(2)
        ranks.close()
        time.sleep(5)
    else:
        ranks.leave()  # which the other one never meets
        time.sleep(0.5)
        late = Late()
