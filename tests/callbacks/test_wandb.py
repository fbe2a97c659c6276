"""What Weights & Biases keeps of a run: read back from the file of a real one, offline."""

import json
import struct
import time

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import WandbLogger
from toys import Raw, Toy, batches, fit, mlp

from hookboard import ActivationLogger, GradientLogger

wandb = pytest.importorskip("wandb")
pytestmark = pytest.mark.filterwarnings("default")  # of what W&B runs on

BLOCK, HEADER, LAST = 32768, 7, (1, 4)


def kept(path):
    """The records of a file of W&B: pieces in blocks of 32 KB, as LevelDB's log has them."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        if place + HEADER + length > len(data):
            return
        whole += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in LAST:
            yield Record.FromString(whole)
            whole = b""


def rows(folder):
    """The rows of the run in their order: name to value, `("name", "part")` to the part of a value."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 30
    while not any(record.HasField("exit") for record in kept(path)):  # `finish` does not wait for the file
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for record in kept(path):
        if record.HasField("history"):
            items = record.history.item
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_histograms_stand_in_the_row_of_their_scalars_with_the_counts_of_the_raw_values(tmp_path, monkeypatch):
    raw = Raw()
    watching = ActivationLogger("net.0", histogram=True), GradientLogger("net.0", histogram=True)
    monkeypatch.setenv("WANDB_SILENT", "true")
    fit(None, Toy(mlp()), batches(40, 50, 60), *watching, raw, logger=WandbLogger(save_dir=tmp_path, offline=True))
    wandb.finish()
    found = list(rows(tmp_path))
    for kind, role in (("activation", "output"), ("gradient", "grad_output")):
        ours = [row for row in found if f"{kind}s/net.0/bins" in row]
        assert [row["trainer/global_step"] for row in ours] == [0, 1, 2]
        for row, step in zip(ours, raw.steps, strict=False):
            values = torch.cat(step[role, "net.0"]).double().numpy()
            edges = np.array(row[f"{kind}s/net.0/bins"])
            assert (edges[0], edges[-1]) == (values.min(), values.max())
            assert row[f"{kind}s/net.0/values"] == np.histogram(values, edges)[0].tolist()
            assert row[f"{kind}_std/net.0"] == pytest.approx(values.std(ddof=1), rel=1e-6)
