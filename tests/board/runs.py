"""Runs that somebody may have in a log directory, as lists of events."""

import io
import json
import math

import numpy as np
from board.logs import histogram, picture, record, scalars
from PIL import Image

from hookboard.base.records import HEALTH, LAYERS, VERSION, HealthRecord, LayerFacts, LayersRecord

NAN, INF = math.nan, math.inf

NASTY = [
    "<img src=x onerror=alert(1)>",
    "a/b/c",
    "quote\"s'and`more",
    "..dots..",
    "\N{GRINNING FACE}.\N{SNOWMAN}",
    "x" * 300,
    "100%&run=other+#?",
    "back\\slash",
]
"""Names of layers that are not to do any harm."""

LINEAR = ("torch.nn.modules.linear.Linear",)
FACTS = (
    LayerFacts("net.stem", ("torch.nn.modules.conv.Conv2d", "torch.nn.modules.conv._ConvNd"), (4, 8, 6, 6)),
    LayerFacts("net.10", LINEAR, (4, 8), {"net.10.weight": (8, 8), "net.10.bias": (8,)}, ("net.10.bias",)),
    LayerFacts("net.9", LINEAR, (4, 8), {"net.9.weight": (8, 8), "net.9.bias": (8,)}),
    LayerFacts("net.head", LINEAR, (4, 2), {"net.head.weight": (2, 8), "net.head.bias": (2,)}),
)
LAYERS_RECORD = LayersRecord("ActivationLogger", 10, FACTS)
OTHER_RECORD = LayersRecord("ParameterLogger", 20, (LayerFacts("net.9", LINEAR, None, {"net.9.weight": (8, 8)}),))
VERDICT = {
    "severity": "alarm",
    "rule": "dead_units",
    "module": "net.9",
    "since": 10,
    "until": None,
    "evidence": "all of <b>8</b> units are 0",
    "advice": "use a smaller learning rate",
    "batch_idx": None,
    "follows_from": None,
    "rows": [],
}
HEALTH_RECORD = HealthRecord(
    10,
    "1 alarm in 4 layers.",
    (VERDICT, VERDICT | {"module": "net", "severity": "note"}, VERDICT | {"module": "", "severity": "note"}),
    ("net.stem", "net.10", "net.9", "net.head"),
    (0, 10, 20, 40),
    {
        "activation_rms": np.array([[1, 2, 3, 4], [1, NAN, INF, 4], [NAN] * 4, [-INF, 3e38, 1e-30, -0.0]], np.float32),
        "dead_fraction": np.array([[0, 0, 0, 0.5], [NAN] * 4, [1, 1, 1, 1], [NAN] * 4], np.float32),
    },
)


def picture_bytes(kind, width=2):
    stream = io.BytesIO()
    Image.new("RGB", (width, 2)).save(stream, kind)
    return stream.getvalue()


def wild():
    """Each row at steps of its own, with gaps and with values of all sorts."""
    random = np.random.default_rng(0)
    for step in range(0, 600, 3):
        values = {}
        for i, name in enumerate(NASTY):
            if random.random() < 0.3 + 0.1 * i % 0.6:
                values[f"activation_std/{name}"] = float(random.choice([NAN, INF, -INF, random.normal(), 0.0, 1e-38]))
            if step % (i + 2) == 0:
                values[f"validate_gradient_rms/{name}"] = random.lognormal()
        yield scalars(step, values)


def taken_up_again():
    """A run that was taken up from a checkpoint twice; one tag starts again with the same step."""
    for number, start in enumerate((0, 60, 30)):
        for step in range(start, start + 100, 10):
            yield scalars(step, {"activation_std/net.0": step + 1000.0 * number})
    yield scalars(10, {"activation_rms/net.0": 1.0})
    yield scalars(10, {"activation_rms/net.0": 2.0})


def recorded(shift=0.0):
    """With all that this hookboard writes."""
    for step in range(0, 50, 10):
        values = {f"activation_std/{layer.name}": step + i + shift for i, layer in enumerate(FACTS)}
        values |= {f"parameter_l2/{name}": step + 0.5 for layer in FACTS for name in layer.parameters}
        values |= {"activation_std/net.10/0": 7.0, "train/loss": 1.0}
        yield scalars(step, values)
        yield histogram(step, "activations/net.9", [-1.0, 0.0, 2.0, 3.0], [1 + step, 0, 2])
    yield histogram(0, "parameters/net.9.weight", [0.0, 1.0], [3])
    yield histogram(0, "their/net.9", [0.0, 1.0], [3])
    for step in (0, 20):
        yield picture(step, "cam/net.9/gradcam", picture_bytes("JPEG"))
        yield picture(step, "feature_maps/net.9", picture_bytes("PNG"))
        yield picture(step, "health/activation_rms", picture_bytes("PNG"))
    yield picture(0, "kernels/net.stem", b"GIF89a no picture that is served")
    for step in (10, 40):
        yield record(step, HEALTH, HEALTH_RECORD.strings())
    yield record(0, f"{LAYERS}/ActivationLogger", LAYERS_RECORD.strings())
    yield record(0, f"{LAYERS}/ParameterLogger", OTHER_RECORD.strings())


def first_version():
    tags = [f"layers.{i}" for i in (10, 9, 1)]
    for step in range(0, 30, 10):
        yield scalars(step, {f"{kind}_mean/{tag}": step + 0.25 for kind in ("activation", "gradient") for tag in tags})


def mixed():
    """Somebody's own tags beside ours, and a statistic of the user's own."""
    ours = {"activation_std/net.0": 1.0, "activation_near_zero/net.0": 2.0}
    yield scalars(0, {**ours, "input_size/train": 3.0, "train/loss": 4.0, "activation_std": 5.0, "activation_/x": 6.0})


def corrupt():
    yield scalars(0, {"activation_std/net.0": 1.0})
    yield record(0, HEALTH, [b"\xff\x00 nothing", b"more"])
    yield record(0, f"{LAYERS}/Newer", [json.dumps({"version": VERSION + 1}).encode()])
    strange = json.loads(HEALTH_RECORD.strings()[0])
    yield record(0, f"{LAYERS}/Strange", [json.dumps(strange).encode()])
    yield record(0, "hookboard/of_the_future", [b"x"])


RUNS = {
    "nested/wild run": list(wild()),
    ".": list(taken_up_again()),
    "nested/recorded": list(recorded()),
    "nested/recorded/second": [*recorded(shift=100.0), scalars(45, {"activation_std/net.9": NAN})],
    "first_2": list(first_version()),
    "first_10": list(first_version()),
    "mixed": list(mixed()),
    "corrupt": list(corrupt()),
    "theirs": [scalars(0, {"input_size/train": 1.0, "train/loss": 1.0, "activation_std": 2.0})],
}
