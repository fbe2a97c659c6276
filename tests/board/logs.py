"""Log directories written by hand, and the plugin on top of each of TensorBoard's two loaders, without a server."""

import contextlib
import json
import subprocess
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what TensorBoard comes with
    import grpc
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, HistogramProto, Summary, SummaryMetadata
    from tensorboard.data import grpc_provider
    from tensorboard.data.server_ingester import get_server_binary
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.summary.writer.record_writer import RecordWriter
    from tensorboard.util import tensor_util
    from werkzeug.test import Client

    from hookboard.board.plugin import HookboardPlugin

from hookboard.base.records import PLUGIN

KEPT = {"scalars": 0, "histograms": 0, "images": 0, PLUGIN: 10}
"""How much TensorBoard is to keep of each plugin's tags: all, but for records."""


def scalars(step, values):
    event = Event(step=step)
    for tag, value in values.items():
        event.summary.value.add(tag=tag, simple_value=value)
    return event


def record(step, tag, strings):
    """A tensor under hookboard's plugin name, as docs/inside.md describes it."""
    event = Event(step=step)
    metadata = SummaryMetadata(plugin_data={"plugin_name": PLUGIN}, data_class=DATA_CLASS_TENSOR)
    tensor = tensor_util.make_tensor_proto(np.array(strings, dtype=object))
    event.summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
    return event


def histogram(step, tag, edges, counts):
    event = Event(step=step)
    seen = [i for i, count in enumerate(counts) if count] or [0]
    # A loader of TensorBoard's drops empty bins at the ends, and takes these two for the ends of the others.
    low, high = edges[seen[0]], edges[seen[-1] + 1]
    proto = HistogramProto(min=low, max=high, num=sum(counts), bucket_limit=edges[1:], bucket=counts)
    event.summary.value.add(tag=tag, histo=proto)
    return event


def picture(step, tag, data):
    event = Event(step=step)
    image = Summary.Image(height=1, width=1, colorspace=3, encoded_image_string=data)
    event.summary.value.add(tag=tag, image=image, metadata=SummaryMetadata(plugin_data={"plugin_name": "images"}))
    return event


def write(folder, events, started=1000.0):
    """Put events at the end of a run's event file, one second apart."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "events.out.tfevents.1.test").open("ab") as file:
        writer = RecordWriter(file)
        if not file.tell():
            writer.write(Event(wall_time=started, file_version="brain.Event:2").SerializeToString())
        for number, event in enumerate(events):
            event.wall_time = started + number
            writer.write(event.SerializeToString())


def asker(provider):
    """The plugin on a provider; `ask` gives the status and what the JSON says, `get` the whole answer."""
    plugin = HookboardPlugin(TBContext(data_provider=provider))
    apps = plugin.get_plugin_apps()
    client = Client(lambda environ, start: apps[environ["PATH_INFO"]](environ, start))

    def get(path, **given):
        return client.get(f"/{path}", query_string=given)

    def ask(path, **given):
        answer = get(path, **given)
        return answer.status_code, json.loads(answer.data)

    return SimpleNamespace(plugin=plugin, apps=apps, client=client, get=get, ask=ask, reload=lambda: None)


@contextlib.contextmanager
def slow(folder):
    """On the loader that runs inside TensorBoard."""
    multiplexer = EventMultiplexer(tensor_size_guidance=KEPT)

    def reload():
        multiplexer.AddRunsFromDirectory(str(folder))
        multiplexer.Reload()

    reload()
    board = asker(MultiplexerDataProvider(multiplexer, str(folder)))
    board.reload = reload
    yield board


@contextlib.contextmanager
def fast(folder, runs):
    """On the loader that is a process of its own; it has read as many runs when this begins."""
    kept = ",".join(f"{name}={count or 'all'}" for name, count in KEPT.items())
    port_file = Path(folder).parent / f"{Path(folder).name}.port"
    flags = [f"--logdir={folder}", "--reload=1", f"--samples-per-plugin={kept}", "--port=0"]
    command = [get_server_binary().path, *flags, f"--port-file={port_file}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: port_file.exists() and port_file.read_text().endswith("\n"))
            with grpc.insecure_channel(f"localhost:{port_file.read_text().strip()}") as channel:
                provider = grpc_provider.GrpcDataProvider("", grpc_provider.make_stub(channel))
                board = asker(provider)
                until(lambda: len(provider.list_runs(None, experiment_id="")) == runs)
                yield board
        finally:
            server.kill()


def until(holds, seconds=20.0):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
