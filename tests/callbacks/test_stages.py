"""Validation, testing and prediction: one reading for each loop, over all its batches."""

import warnings
from collections import defaultdict

import pytest
import torch
from callbacks.compiling import compiles
from oracle import assert_true
from toys import Toy, batches, events, fit, hooked, loader, mlp, scalars, trainer

from hookboard import ActivationLogger
from hookboard.measure.statistics import FORMULAS

LOOPS = ["validate", "test", "predict"]
BATCHES = batches(5, 3, 7)
VALIDATION = {"limit_val_batches": 1.0, "num_sanity_val_steps": 0}


def outputs(net, data):
    """What each module of a sequence returns for all batches."""
    found = defaultdict(list)
    for x in data:
        for name, module in net.named_children():
            x = module(x.clone())
            found[f"net.{name}"].append(x)
    return found


def evaluate(folder, stage, model, callback, data=BATCHES):
    getattr(trainer(folder, callback, limit_val_batches=1.0), stage)(model, loader(data))


@pytest.mark.parametrize("stage", LOOPS)
def test_a_loop_gives_one_reading_over_all_its_batches_whose_tags_begin_with_the_stage(tmp_path, stage):
    model, callback = Toy(mlp()), ActivationLogger(stages=stage, statistics=list(FORMULAS), histogram=True)
    evaluate(tmp_path, stage, model, callback)
    expected = outputs(model.net, BATCHES)
    assert [reading.site.name for reading in callback.readings] == list(expected)
    for reading in callback.readings:
        assert reading.stage == stage
        assert_true(reading.statistics, expected[reading.site.name])
    found = events(tmp_path).Tags()
    assert f"{stage}_activation_std/net.0" in found["scalars"]
    assert f"{stage}_activations/net.0" in found["histograms"]
    assert all(tag.startswith(stage) for tag in [*found["scalars"], *found["histograms"]] if "/" in tag)


def test_within_a_fit_the_points_stand_where_lightning_logs_validation(tmp_path):
    class LogsValidation(Toy):
        def validation_step(self, batch):
            self.log("val_loss", self.net(batch).square().mean())

    callback = ActivationLogger("net.0", stages=["train", "validate"], statistics="std")
    fit(tmp_path, LogsValidation(mlp()), batches(*[4] * 6), callback, max_epochs=2, val_check_interval=3, **VALIDATION)
    found = scalars(tmp_path)
    assert len(found["val_loss"]) == 4
    assert list(found["validate_activation_std/net.0"]) == list(found["val_loss"])
    assert list(found["activation_std/net.0"]) == list(range(12))


def test_validation_in_the_midst_of_an_accumulated_step_leaves_its_numbers_alone(tmp_path):
    def of_training(folder, stages):
        callback = ActivationLogger(stages=stages)
        options = {"accumulate_grad_batches": 2, "val_check_interval": 1, **VALIDATION}
        fit(folder, Toy(mlp()), batches(*[4] * 6), callback, **options)
        return {tag: points for tag, points in scalars(folder).items() if tag.startswith("activation_")}

    alone = of_training(tmp_path / "alone", "train")
    assert len(alone) == 15
    assert of_training(tmp_path / "both", ["train", "validate"]) == alone


def test_the_sanity_check_is_not_measured(tmp_path):
    callback = ActivationLogger("net.0", stages="validate", statistics="std")
    fit(tmp_path, Toy(mlp()), batches(4, 4), callback, limit_val_batches=1.0, num_sanity_val_steps=2)
    assert list(scalars(tmp_path)["validate_activation_std/net.0"]) == [1]


def test_only_the_stages_that_are_named_are_watched(tmp_path):
    model, callback = Toy(mlp()), ActivationLogger(stages="test")
    fit(tmp_path / "fit", model, batches(4), callback, **VALIDATION)
    evaluate(tmp_path / "validate", "validate", model, callback)
    assert callback.readings == ()
    evaluate(tmp_path / "test", "test", model, callback)
    assert callback.readings


def test_every_loader_of_a_loop_counts(tmp_path):
    class TwoLoaders(Toy):
        def test_step(self, batch, batch_idx, dataloader_idx):
            self.net(batch)

    callback = ActivationLogger("net.0", stages="test")
    trainer(tmp_path, callback).test(TwoLoaders(mlp()), [loader(batches(4)), loader(batches(6, 5))])
    assert callback.readings[0].moments.count == (4 + 6 + 5) * 8


@pytest.mark.parametrize("stage", LOOPS)
def test_no_hook_stays_after_a_loop_that_failed(tmp_path, stage):
    model = Toy(mlp())
    with pytest.raises(RuntimeError):
        evaluate(tmp_path, stage, model, ActivationLogger(stages=stage), data=batches(4, width=5))
    assert hooked(model) == []


def test_modules_that_stay_silent_are_named_for_each_stage(tmp_path):
    class OnlyTrains(Toy):
        def validation_step(self, batch):
            self.net[0](batch)

    callback = ActivationLogger(["net.0", "net.2"], stages=["train", "validate"])
    with pytest.warns(UserWarning, match=r"1 of 2 sites had nothing to measure in the validate loop at step 1") as said:
        fit(tmp_path, OnlyTrains(mlp()), batches(4, 4), callback, max_epochs=3, **VALIDATION)
    assert sum("nothing to measure" in str(warning.message) for warning in said) == 1


@compiles
def test_a_compiled_model_has_one_more_graph_and_the_same_numbers(tmp_path):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def numbers(folder, wrap):
        model = Toy(mlp())
        model.net = wrap(model.net)
        callback = ActivationLogger(stages=["train", "validate"], every_n_steps=2)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*nothing to measure")
            fit(folder, model, batches(*[4] * 4), callback, max_epochs=2, **VALIDATION)
        return {tag: points for tag, points in scalars(folder).items() if "/" in tag}

    eager = numbers(tmp_path / "eager", lambda net: net)
    compiled = numbers(tmp_path / "compiled", lambda net: torch.compile(net, backend=backend, fullgraph=True))
    assert len(graphs) == 3
    assert compiled.keys() == eager.keys()
    for tag, points in eager.items():
        assert compiled[tag] == pytest.approx(points, rel=1e-5, abs=1e-7)
