"""What FeatureMapLogger and KernelLogger write, when, and what they leave alone."""

import re
import warnings
from unittest.mock import Mock

import pytest
import torch
from callbacks.compiling import compiles
from callbacks.heard import warnings_of
from callbacks.user_program import Does, Forgets
from torch import nn
from toys import Toy, events, fit, hooked, images, loader, trainer

from hookboard import CAMLogger, FeatureMapLogger, KernelLogger
from hookboard.images.feature_maps import drawn_inputs, feature_maps, maps_in, select_maps
from hookboard.images.picture import BAR_HEIGHT, MARGIN

VALIDATED = {"limit_val_batches": 1.0, "num_sanity_val_steps": 0}


def pictures_of(count, size=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 8, 8, generator=generator) for _ in range(count)]


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Conv2d(4, 5, 3),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, 3),
    )


def test_the_picture_in_the_file_is_that_of_what_the_module_returned(tmp_path):
    net, raw = cnn(), []
    net[4].register_forward_hook(lambda module, args, output: raw.append((module.training, output.clone())))
    fit(tmp_path, Toy(net), pictures_of(3), FeatureMapLogger("net.4", every_n_steps=1), **VALIDATED)
    first_validated = next(output for training, output in raw if not training)
    part = select_maps(maps_in(first_validated[:2], net[4], aspect=1.0), channels=16, size=64)
    inputs = drawn_inputs(pictures_of(3)[0][:2], 128)
    expected = feature_maps(part, "net.4", normalize="map", size=64, inputs=inputs).pixels
    ((step, found),) = images(tmp_path)["feature_maps/net.4"].items()
    assert step == 2
    height, width = expected.shape[:2]
    assert (found[-height - BAR_HEIGHT : -BAR_HEIGHT, MARGIN : MARGIN + width] == expected).all()


def test_an_output_of_more_samples_than_the_batch_has_stands_alone(tmp_path):
    windows = Does(lambda x: x.unflatten(3, (2, 4)).movedim(3, 1).flatten(0, 1))
    fit(tmp_path, Toy(nn.Sequential(windows, nn.Conv2d(3, 3, 1))), pictures_of(1), FeatureMapLogger(every_n_steps=1))
    described = events(tmp_path).summary_metadata["feature_maps/net.1"].summary_description
    assert described.startswith("net.1 (training batch): 3 channels")


def test_pictures_of_every_validation_show_the_same_samples(tmp_path):
    model = Toy(cnn())
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=0.0)
    model.net[1].momentum = 0.0
    fit(tmp_path, model, pictures_of(2), FeatureMapLogger("net.0", every_n_steps=1), max_epochs=2, **VALIDATED)
    first, second = images(tmp_path)["feature_maps/net.0"].values()
    assert (first == second).all()


@pytest.mark.parametrize(
    ("count", "cadence", "options", "steps"),
    [
        (7, {"stage": "train", "every_n_steps": 3}, {}, [2, 5]),
        (2, {"every_n_steps": 1}, {}, [0, 1]),
        (2, {"every_n_steps": 3}, {"max_epochs": 5, **VALIDATED}, [1, 5, 9]),
        (2, {"every_n_steps": 1}, {"limit_val_batches": 1.0, "num_sanity_val_steps": 2}, [1]),
    ],
    ids=["in training", "without a validation", "when enough steps have passed", "not in the sanity check"],
)
def test_pictures_come_with_due_steps_or_validations(tmp_path, count, cadence, options, steps):
    fit(tmp_path, Toy(cnn()), pictures_of(count), FeatureMapLogger("net.0", **cadence), **options)
    assert list(images(tmp_path)["feature_maps/net.0"]) == steps


def test_by_default_pictures_come_twenty_times_less_often_than_numbers(tmp_path):
    fit(tmp_path, Toy(cnn()), pictures_of(41), KernelLogger(), log_every_n_steps=1)
    assert list(images(tmp_path)["kernels/net.0"]) == [19, 39]


@pytest.mark.parametrize("make", [FeatureMapLogger, CAMLogger])
def test_a_fit_whose_loops_end_before_the_batch_that_is_to_be_shown_says_so(tmp_path, make, caplog):
    fit(tmp_path, Toy(cnn()), pictures_of(2), make(batch_idx=2, every_n_steps=1), max_epochs=3, **VALIDATED)
    assert "showed nothing: no validate loop after the start of the fit had a batch 2." in caplog.text


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_an_evaluation_by_itself_is_shown_whatever_the_cadence(tmp_path, stage):
    callback = FeatureMapLogger("net.0", stage=stage, batch_idx=1)
    run = trainer(tmp_path, callback, limit_val_batches=1.0, log_every_n_steps=0)
    getattr(run, stage)(Toy(cnn()), loader(pictures_of(3)))
    assert list(images(tmp_path)) == ["feature_maps/net.0"]


def test_kernels_are_shown_after_the_optimizer_has_stepped_beside_their_change(tmp_path):
    net = cnn()
    before = net[0].weight.detach().clone()
    fit(tmp_path, Toy(net), pictures_of(2), KernelLogger("net.0", every_n_steps=2))
    change = (net[0].weight - before).abs().max().item()
    found = events(tmp_path).summary_metadata["kernels/net.0"].summary_description
    assert f"change in this fit, ±{change:.3g}" in found
    assert f"now, ±{net[0].weight.abs().max().item():.3g}" in found


def test_a_fit_too_short_for_a_picture_says_so(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr("hookboard.callbacks.pictures.inform", lines.append)
    callbacks = [KernelLogger(every_n_steps=5), FeatureMapLogger(stage="train", every_n_steps=5)]
    fit(tmp_path, Toy(cnn()), pictures_of(3), *callbacks)
    said = "showed nothing: the fit took 3 steps, but every_n_steps is 5."
    assert lines == [f"KernelLogger {said}", f"FeatureMapLogger {said}"]


def test_by_default_convolutions_are_shown_and_kernels_of_one_pixel_are_not(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.ReLU())
    callbacks = [FeatureMapLogger(every_n_steps=1), KernelLogger(every_n_steps=1)]
    fit(tmp_path, Toy(net), pictures_of(1), *callbacks)
    assert sorted(images(tmp_path)) == ["feature_maps/net.0", "feature_maps/net.1", "kernels/net.0"]


def test_of_many_convolutions_sixteen_are_shown_from_first_to_last(tmp_path):
    net = nn.Sequential(*[nn.Conv2d(3, 3, 1) for _ in range(40)])
    fit(tmp_path, Toy(net), pictures_of(1), FeatureMapLogger(every_n_steps=1))
    shown_modules = [int(tag.rpartition(".")[2]) for tag in images(tmp_path)]
    assert len(shown_modules) == 16
    assert (min(shown_modules), max(shown_modules)) == (0, 39)


def test_attention_weights_are_shown_where_a_module_returns_them(tmp_path):
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, average_attn_weights=False)[0]

    data = [torch.randn(2, 5, 4)]
    fit(tmp_path, Toy(Attends()), data, FeatureMapLogger("net.attention", every_n_steps=1))
    found = events(tmp_path)
    assert sorted(found.Tags()["images"]) == ["feature_maps/net.attention/0", "feature_maps/net.attention/1"]
    described = found.summary_metadata["feature_maps/net.attention/1"].summary_description
    assert "2 channels, 5x5, attention weights" in described


def test_a_module_without_a_picture_is_named_once_with_the_cause(tmp_path):
    class Skips(nn.Sequential):
        def forward(self, x):
            return self[0](x)

    net, callback = Skips(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), FeatureMapLogger(types="Conv2d", every_n_steps=1)
    (said,) = warnings_of(lambda: fit(tmp_path, Toy(net), pictures_of(3), callback))
    assert "no picture of 1 out of 2 modules:\n  - net.1: output: the module was not" in said


def test_a_logger_without_pictures_is_named_once(tmp_path):
    options = {"logger": Forgets()}
    (said,) = warnings_of(lambda: fit(tmp_path, Toy(cnn()), pictures_of(3), KernelLogger(every_n_steps=1), **options))
    assert "KernelLogger: Forgets does not support pictures" in said


def test_another_logger_gets_pictures_through_its_own_method(tmp_path):
    taken = []

    class TakesImages(Forgets):
        def log_image(self, key, images, step=None, caption=None):
            taken.append((key, step, images[0].mode, caption[0]))

    fit(tmp_path, Toy(cnn()), pictures_of(2), KernelLogger("net.0", every_n_steps=2), logger=TakesImages())
    ((*place, mode, caption),) = taken
    assert (place, mode) == (["kernels/net.0", 1], "RGB")
    assert caption.startswith("net.0: 4x3x3x3, in colour")


def test_hooks_are_there_during_the_shown_batch_alone(tmp_path):
    counts = []

    class Counts(Toy):
        def validation_step(self, batch):
            counts.append(len(hooked(self)))
            return super().validation_step(batch)

    callbacks = [FeatureMapLogger("net.0", batch_idx=1, every_n_steps=1), CAMLogger(batch_idx=1, every_n_steps=1)]
    fit(tmp_path, Counts(cnn()), pictures_of(3), *callbacks, **VALIDATED)
    assert [count > 0 for count in counts] == [False, True, False]


def test_a_fault_ends_the_pictures_and_not_the_run(tmp_path, monkeypatch):
    model = Toy(cnn())
    monkeypatch.setattr("hookboard.callbacks.pictures.feature_maps", Mock(side_effect=RuntimeError("no colours today")))
    (said,) = warnings_of(lambda: fit(tmp_path, model, pictures_of(3), FeatureMapLogger(every_n_steps=1)))
    assert re.search("FeatureMapLogger is .*off.*no colours", said, re.DOTALL)
    assert model.global_step == 3


def test_one_sample_is_enough(tmp_path):
    run = trainer(tmp_path, FeatureMapLogger(every_n_steps=1), CAMLogger(every_n_steps=1), limit_val_batches=1.0)
    run.validate(Toy(cnn()), loader(pictures_of(1, size=1)))
    assert len(images(tmp_path)) == 3


@pytest.mark.parametrize("callback", [FeatureMapLogger(), KernelLogger(), CAMLogger()], ids=lambda c: type(c).__name__)
def test_without_a_logger_nothing_is_done(callback):
    fit(None, Toy(cnn()), pictures_of(1), callback, **VALIDATED)
    assert not callback._live


@compiles
def test_after_the_batch_that_is_shown_compiled_code_runs_compiled_again(tmp_path):
    ran = []

    def backend(graph, inputs):
        return lambda *given: ran.append("compiled") or graph(*given)

    model = Toy(cnn())
    model.net = torch.compile(model.net, backend=backend)
    model.on_validation_end = lambda: ran.append("validated")
    callbacks = [FeatureMapLogger(every_n_steps=1), CAMLogger(every_n_steps=1), CAMLogger("net.0", every_n_steps=1)]
    fit(tmp_path, model, pictures_of(2), *callbacks, max_epochs=2, **VALIDATED)
    assert ran.index("validated") < len(ran) - 2
    assert ran[ran.index("validated") + 1] == "compiled"


@compiles
@pytest.mark.parametrize("compiled", ["attribute", "in_place"])
def test_a_compiled_model_is_shown_in_validation_all_the_same(tmp_path, compiled):
    model = Toy(cnn())
    if compiled == "attribute":
        model.net = torch.compile(model.net, backend="aot_eager")
    else:
        model.net.compile(backend="aot_eager")
    callbacks = [FeatureMapLogger(every_n_steps=1), CAMLogger(every_n_steps=1)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="hookboard")
        fit(tmp_path, model, pictures_of(2), *callbacks, max_epochs=2, **VALIDATED)
    found = images(tmp_path)
    assert sorted(found) == ["cam/net.5/grad_cam", "feature_maps/net.0", "feature_maps/net.4"]
    assert all(list(steps) == [1, 3] for steps in found.values())
