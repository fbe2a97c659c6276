"""The records of the layers, written by real callbacks and read back from the files of a real TensorBoardLogger."""

import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import Callback
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR
from torch import nn
from toys import ALWAYS, Raw, Toy, batches, events, fit, mlp, scalars

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger
from hookboard.base.records import HEALTH, LayerFacts, health_record, layers_record

LINEAR = ("torch.nn.modules.linear.Linear",)
RELU = ("torch.nn.modules.activation.ReLU",)

UNUSED = pytest.mark.filterwarnings("ignore:.*1 of 4 sites had nothing to measure")

FIRST = LayerFacts("net.0", LINEAR, (6, 8), {"net.0.weight": (8, 4), "net.0.bias": (8,)})
LAST = LayerFacts("net.2", LINEAR, (6, 3), {"net.2.weight": (3, 8), "net.2.bias": (3,)})


class Backwards(nn.Module):
    """Runs its layers in another order than it defines them."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 2)
        self.first = nn.Linear(4, 3)
        self.late = nn.Linear(5, 5)
        self.middle = nn.Linear(3, 5)
        self.runs_late = False

    def forward(self, x):
        x = self.middle(self.first(x))
        return self.last(self.late(x) if self.runs_late else x)


class At(Callback):
    """Does something to the model before a step."""

    def __init__(self, step, change):
        self.step, self.change = step, change

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == self.step:
            self.change(pl_module)


def written(folder, callback):
    """Step and record, for all that was written of a callback."""
    found = events(folder)
    tag = f"hookboard/layers/{callback}"
    if tag not in found.Tags()["tensors"]:
        return []
    return [(e.step, layers_record(list(e.tensor_proto.string_val))) for e in found.Tensors(tag)]


def only(folder, callback):
    ((step, record),) = written(folder, callback)
    assert step == 0
    return record


@pytest.mark.parametrize("make", [ActivationLogger, GradientLogger])
def test_what_is_watched_by_calls_is_recorded_with_types_shapes_and_cadence(tmp_path, make):
    fit(tmp_path, Toy(mlp()), batches(6, 5, 6, 6), make(every_n_steps=2))
    ((step, record),) = written(tmp_path, make.__name__)
    assert step == 1
    assert (record.callback, record.every_n_steps) == (make.__name__, 2)
    relu = LayerFacts("net.1", RELU, (5, 8))
    shapes = {"net.0": (5, 8), "net.2": (5, 3)}
    ends = [LayerFacts(one.name, one.types, shapes[one.name], one.parameters) for one in (FIRST, LAST)]
    assert record.layers == (ends[0], relu, ends[1])


def test_a_parameter_logger_records_the_owners_in_the_order_of_the_model(tmp_path):
    fit(tmp_path, Toy(Backwards()), batches(6), ParameterLogger())
    record = only(tmp_path, "ParameterLogger")
    assert [layer.name for layer in record.layers] == ["net.last", "net.first", "net.late", "net.middle"]
    assert record.layers[1] == LayerFacts(
        "net.first", LINEAR, None, {"net.first.weight": (3, 4), "net.first.bias": (3,)}
    )


def test_what_is_frozen_is_recorded(tmp_path):
    model = Toy(mlp())
    model.net[0].requires_grad_(False)
    model.net[2].bias.requires_grad_(False)
    fit(tmp_path, model, batches(6), ActivationLogger())
    frozen = {layer.name: layer.frozen for layer in only(tmp_path, "ActivationLogger").layers}
    assert frozen == {"net.0": ("net.0.weight", "net.0.bias"), "net.1": (), "net.2": ("net.2.bias",)}


@UNUSED
@pytest.mark.parametrize("make", [ActivationLogger, GradientLogger, HealthMonitor])
def test_the_order_is_that_of_execution(tmp_path, make):
    watching = make("net.*", types="Linear", every_n_steps=1)
    fit(tmp_path, Toy(Backwards()), batches(6, 6), watching)
    ran = [layer.name for layer in only(tmp_path, make.__name__).layers if layer.name != "net.late"]
    assert ran == ["net.first", "net.middle", "net.last"]


@pytest.mark.parametrize("make", [ActivationLogger, GradientLogger, HealthMonitor])
@UNUSED
def test_a_layer_that_runs_for_the_first_time_later_on_is_recorded_then(tmp_path, make):
    model, watching = Toy(Backwards()), make("net.*", types="Linear", every_n_steps=1)
    fit(tmp_path, model, batches(6, 6, 6), At(2, lambda m: setattr(m.net, "runs_late", True)), watching)
    first, second = written(tmp_path, make.__name__)
    assert [first[0], second[0]] == [0, 2]
    found = {one.name: one for one in second[1].layers}
    assert {one.name: one.output for one in first[1].layers}["net.late"] is None
    assert found["net.late"].output == (6, 5)


def test_types_name_the_classes_above_it_up_to_module(tmp_path):
    class Mine(nn.Linear):
        pass

    fit(tmp_path, Toy(nn.Sequential(Mine(4, 2))), batches(6), ActivationLogger())
    (layer,) = only(tmp_path, "ActivationLogger").layers
    assert layer.types == (f"{Mine.__module__}.{Mine.__qualname__}", *LINEAR)


@pytest.mark.filterwarnings("ignore:.*the model changed")
def test_nothing_is_recorded_again_while_nothing_changes_or_a_layer_is_replaced_by_its_like(tmp_path):
    watching = ActivationLogger(every_n_steps=1, stages=["train", "validate"])
    like = At(1, lambda model: setattr(model.net, "2", nn.Linear(8, 3)))
    options = {"max_epochs": 2, "limit_val_batches": 1, "num_sanity_val_steps": 0}
    fit(tmp_path, Toy(mlp()), batches(6, 6), watching, like, **options)
    assert len(written(tmp_path, "ActivationLogger")) == 1
    assert "validate_activation_std/net.0" in scalars(tmp_path)


@pytest.mark.filterwarnings("ignore:.*the model changed")
@pytest.mark.parametrize("make", [ActivationLogger, GradientLogger, ParameterLogger, HealthMonitor])
def test_a_replaced_layer_is_recorded_with_its_own_shapes(tmp_path, make):
    def change(model):
        model.net[2] = nn.Linear(8, 5)

    fit(tmp_path, Toy(mlp()), batches(6, 6, 6, 6), At(2, change), make(every_n_steps=1))
    first, second = written(tmp_path, make.__name__)
    assert [first[0], second[0]] == [0, 3]  # the model changes when the step 2 has begun
    before, after = first[1].layers[-1], second[1].layers[-1]
    output = (lambda shape: None) if make is ParameterLogger else (lambda shape: shape)
    assert (before.output, before.parameters) == (output((6, 3)), {"net.2.weight": (3, 8), "net.2.bias": (3,)})
    assert (after.output, after.parameters) == (output((6, 5)), {"net.2.weight": (5, 8), "net.2.bias": (5,)})


def example():
    """The Python of docs/inside.md."""
    (code,) = re.findall(r"```python\n(.*?)```", Path("docs/inside.md").read_text(), re.DOTALL)
    return code


def test_the_example_of_the_docs_reads_what_a_monitor_wrote(tmp_path):
    raw = Raw()
    fit(tmp_path, Toy(mlp()), batches(*[6] * 12), raw, HealthMonitor(every_n_steps=1))
    found = {"folder": str(tmp_path)}
    exec(example(), found)
    record, values = found["record"], found["values"]
    assert record["layers"] == ["net.0", "net.1", "net.2"]
    assert record["steps"] == list(range(12))
    for i, name in enumerate(record["layers"]):
        oracle = [step["output", name][0].double().square().mean().sqrt().item() for step in raw.steps[:12]]
        np.testing.assert_allclose(values["activation_rms"][i], oracle, rtol=1e-5)


def test_the_verdicts_of_a_monitor_are_in_its_record(tmp_path):
    monitor = HealthMonitor(every_n_steps=1, rules=[ALWAYS])
    fit(tmp_path, Toy(mlp()), batches(*[6] * 6), monitor)
    last = events(tmp_path).Tensors(HEALTH)[-1]
    record = health_record(list(last.tensor_proto.string_val))
    said = [asdict(verdict.in_sentences()) for verdict in monitor.verdicts]
    assert list(record.verdicts) == [one | {"rows": list(one["rows"])} for one in said] != []  # JSON has no tuples
    assert last.step == 5


def test_records_show_no_card_of_another_plugin(tmp_path):
    fit(tmp_path, Toy(mlp()), batches(6, 6), ActivationLogger(), HealthMonitor(every_n_steps=1))
    found = events(tmp_path)
    tags = {tag for tag in found.Tags()["tensors"] if tag.startswith("hookboard/")}
    assert tags == {"hookboard/layers/ActivationLogger", "hookboard/layers/HealthMonitor", HEALTH}
    metadata = [found.SummaryMetadata(tag) for tag in tags]
    assert {one.plugin_data.plugin_name for one in metadata} == {"hookboard"}
    assert {one.data_class for one in metadata} == {DATA_CLASS_TENSOR}
