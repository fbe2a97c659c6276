"""Runs that never were trained, for the tests of the page: first of all a transformer with a sick layer."""

import math

import numpy as np
from board.logs import histogram, picture, record, scalars, write
from board.runs import picture_bytes

from hookboard.base.records import HEALTH, LAYERS, HealthRecord, LayerFacts, LayersRecord
from hookboard.health.rule import Verdict

PARTS = {
    "self_attn": ("MultiheadAttention", 0.1),
    "linear1": ("Linear", 0.8),
    "dropout": ("Dropout", 0.5),
    "linear2": ("Linear", 0.4),
    "norm1": ("LayerNorm", 1.0),
    "norm2": ("LayerNorm", 1.0),
}
"""The parts of a layer, with their type and the usual RMS of their output."""

SICK = "encoder.layers.7.linear1"

STEPS = tuple(range(0, 120, 2))


def layers_of(count=12):
    """(name, type, usual RMS) of each layer of a transformer, in the order in which they run."""
    inside = [(f"encoder.layers.{i}.{part}", kind, rms) for i in range(count) for part, (kind, rms) in PARTS.items()]
    return [("token_embedding", "Embedding", 1.0), *inside, ("norm", "LayerNorm", 1.0), ("head", "Linear", 0.5)]


def sick_values(layers, seed=0):
    """RMS of outputs and of gradients, shape (layers, steps): the feed-forward part of layer 7 is dead."""
    random = np.random.default_rng(seed)
    names = [name for name, _, _ in layers]
    usual = np.array([rms for _, _, rms in layers])[:, None] * np.exp(random.normal(0, 0.12, (len(layers), 1)))
    noise = random.normal(0, 0.03, (2, len(layers), len(STEPS)))
    course = 1 + 0.4 * np.array(STEPS) / STEPS[-1]
    activations = usual * course * np.exp(noise[0])
    gradients = 1e-4 * usual * np.exp(noise[1]) * np.linspace(2, 0.5, len(layers))[:, None]
    activations[names.index(SICK)] = 9.9
    activations[names.index("encoder.layers.7.dropout")] = 0
    activations[names.index("encoder.layers.7.linear2")] = 0.02
    gradients[[names.index(f"encoder.layers.7.{part}") for part in ("linear1", "dropout", "norm2")]] = 0
    gradients[names.index("encoder.layers.3.linear2"), 20:22] = np.inf
    return activations, gradients


FROZEN = ("encoder.layers.7.norm1", "encoder.layers.0.")
"""Layers whose one weight is not trained begin with these: one in the block of the sick one, and a whole block."""

VERDICTS = (
    {
        "severity": "alarm",
        "rule": "dead_units",
        "module": SICK,
        "since": 10,
        "until": None,
        "evidence": "256 of 256 units were never above 0 since step 10.",
        "advice": "Look at how this layer is initialized, its bias first.",
        "batch_idx": None,
    },
    {
        "severity": "note",
        "rule": "no_gradient",
        "module": "encoder.layers.7.norm2",
        "since": 20,
        "until": 60,
        "evidence": "Only zeros reach its weights (it follows from dead_units in encoder.layers.7.linear1).",
        "advice": "Fix dead_units in encoder.layers.7.linear1 first.",
        "batch_idx": None,
    },
)


def loss_at(step):
    """The training loss; it is not finite at one step."""
    return math.nan if step == STEPS[5] else 4.0 - 3.0 * step / STEPS[-1]


DAY = 86_400


def write_run(folder, *, has_record=True, is_judged=True, seed=0, steps=STEPS, started=2 * DAY, shows=""):
    """A run of a transformer of 12 layers, one of which is sick: its scalars, and if asked its records.

    It began two days after the runs that others write.
    """
    layers = layers_of()
    activations, gradients = sick_values(layers, seed)
    names = [name for name, _, _ in layers]
    tags = {f"activation_std/{name}": row for name, row in zip(names, activations, strict=True)}
    tags |= {f"gradient_std/{name}": row for name, row in zip(names, gradients, strict=True)}
    events = [scalars(step, {tag: float(row[STEPS.index(step)]) for tag, row in tags.items()}) for step in steps]
    events += [scalars(step, {"train/loss": loss_at(step), "val/loss": 9.0}) for step in steps]
    if has_record:
        facts = tuple(
            LayerFacts(
                name,
                (f"torch.nn.modules.{kind}",),
                (64, 63, 64),
                {f"{name}.weight": (64, 64)},
                (f"{name}.weight",) if name.startswith(FROZEN) else (),
            )
            for name, kind, _ in layers
        )
        values = {"activation_rms": activations, "gradient_rms": gradients}
        headline = "1 alarm and 1 note in 75 layers, measured 60 times from step 0 to 118."
        texts = tuple(str(Verdict(**one)) for one in VERDICTS)
        health = HealthRecord(
            2, headline, VERDICTS, tuple(names), STEPS, values, shows=shows, texts=texts, is_over=True
        )
        events.append(record(0, f"{LAYERS}/HealthMonitor", LayersRecord("HealthMonitor", 2, facts).strings()))
        events += [record(STEPS[-1], HEALTH, health.strings())] if is_judged else []
    write(folder, events, started)


def write_foreign(folder, names):
    """A run whose layers have foreign names, with a card for verdicts on all of them, from which another follows."""
    values = np.abs(np.random.default_rng(0).normal(1, 0.1, (len(names), len(STEPS))))
    tags = {f"activation_std/{name}": row for name, row in zip(names, values, strict=True)}
    events = [scalars(step, {tag: float(row[i]) for tag, row in tags.items()}) for i, step in enumerate(STEPS)]
    evidence = "<b>bold</b> & <a href='javascript:alert(2)'>a link</a>"
    alike = tuple({**VERDICTS[0], "module": name, "evidence": evidence} for name in names)
    effect = {**VERDICTS[1], "rule": names[0], "module": names[0], "evidence": evidence}
    cards = ({"alike": tuple(range(len(names))), "effects": ((len(names),),)},)
    health = HealthRecord(2, names[0], (*alike, effect), tuple(names), STEPS, {"activation_rms": values}, cards)
    write(folder, [*events, record(STEPS[-1], HEALTH, health.strings())])


def write_deep(folder, count, verdicts=()):
    """A run of a transformer of so many layers, healthy but for the verdicts."""
    names = tuple(name for name, _, _ in layers_of(count))
    rows = np.ones((len(names), 2))
    values = {"activation_rms": rows, "gradient_rms": rows}
    health = HealthRecord(2, "Nothing.", tuple(verdicts), names, STEPS[:2], values)
    write(folder, [record(2, HEALTH, health.strings())])


def write_rooted(folder):
    """A run of a model that owns a parameter itself: as a layer, its name is empty."""
    steps = (0, 10, 20)
    facts = (
        LayerFacts("", ("my.models.Scaled",), None, {"scale": (4,)}),
        LayerFacts("net", ("torch.nn.modules.linear.Linear",), None, {"net.weight": (4, 4)}),
    )
    tags = {"parameter_l2/scale": 1.5, "parameter_l2/net.weight": 2.5}
    verdict = {**VERDICTS[0], "module": "", "since": 10, "evidence": "its scale has grown"}
    values = {"weight_rms": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])}
    health = HealthRecord(10, "1 alarm in 2 layers.", (verdict,), ("", "net"), steps, values)
    events = [scalars(step, tags) for step in steps]
    events.append(record(20, f"{LAYERS}/ParameterLogger", LayersRecord("ParameterLogger", 10, facts).strings()))
    write(folder, [*events, record(20, HEALTH, health.strings())])


def write_rowless(folder):
    """A run with verdicts on the whole model and on a layer `away`, neither of which has a row in the map."""
    steps = (0, 10, 20, 30)
    verdicts = tuple({**VERDICTS[0], "module": name} for name in ("", "away"))
    health = HealthRecord(10, "2 alarms.", verdicts, ("net.a",), steps, {"activation_rms": np.ones((1, 4))})
    events = [scalars(step, {"activation_std/net.a": 1.0, "activation_std/net.b": 2.0}) for step in steps]
    write(folder, [*events, record(30, HEALTH, health.strings())])


FALL = np.minimum(0, -28 * (np.arange(302) - 289) / 12) + 0.05 * np.sin(np.arange(302))
"""The order of magnitude of the RMS of each layer: a net of 302 layers in which the signal dies in the last twelve."""


def write_fall(folder):
    """A run of a net of 302 layers, two by two a `Linear` and a `Tanh`: the signal falls, and `net.101` gives only 0.

    An alarm on `net.100` names `net.101`.
    """
    names = tuple(f"net.{i}" for i in range(len(FALL)))
    types = ("torch.nn.modules.Linear", "torch.nn.modules.Tanh")
    facts = tuple(LayerFacts(name, (types[i % 2],)) for i, name in enumerate(names))
    values = np.outer(10.0**FALL, np.ones(3))
    values[101] = 0
    evidence = "8 of 8 units of net.101 (Tanh) were 0 at every measurement, 30 times"
    verdict = {**VERDICTS[0], "module": "net.100", "since": 0, "evidence": evidence}
    health = HealthRecord(10, "1 alarm.", (verdict,), names, (0, 10, 20), {"activation_rms": values})
    events = [record(0, f"{LAYERS}/HealthMonitor", LayersRecord("HealthMonitor", 10, facts).strings())]
    write(folder, [*events, record(20, HEALTH, health.strings())])


EDGES = [-1.0, 0.0, 1.0, 2.0, 4.0]

COUNTS = {0: [0, 6, 2, 0], 10: [2, 2, 2, 2], 20: [0, 0, 0, 8]}
"""Step to what was counted between the edges."""

WIDTHS = {0: 4, 20: 6}
"""Step to the width of the picture, which tells the two apart."""


def write_drawn(folder, names):
    """A run with the scalars of these layers, and all there can be of the first; of `net.1`, also the validation's."""
    tags = [f"{kind}_std/{name}" for kind in ("activation", "gradient") for name in names]
    events = [scalars(step, dict.fromkeys([*tags, f"activation_mean/{names[0]}"], 1.0 + step)) for step in COUNTS]
    events += [scalars(20, {f"validate_activation_std/{name}": 7.0}) for name in names if name == "net.1"]
    events += [histogram(step, f"activations/{names[0]}", EDGES, counts) for step, counts in COUNTS.items()]
    events += [picture(step, f"feature_maps/{names[0]}", picture_bytes("PNG", width)) for step, width in WIDTHS.items()]
    write(folder, sorted(events, key=lambda event: event.step))
