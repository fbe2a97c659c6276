"""Two callbacks that write one tag are named when the fit starts; others say nothing."""

import re
import warnings

import pytest
from torch import nn
from toys import Toy, batches, events, fit, loader, mlp, scalars, trainer

from hookboard import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    HookboardWarning,
    Intervention,
    KernelLogger,
    ParameterLogger,
    Scale,
)


def said_in(folder, net, *callbacks, loss=None, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(folder, Toy(net, loss), batches(4), *callbacks, **options)
    return [str(w.message) for w in caught if issubclass(w.category, HookboardWarning)]


def convolutions():
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Conv1d(2, 2, 2))


@pytest.mark.parametrize(
    ("make", "names", "tags"),
    [
        (
            lambda: [ActivationLogger("net.0"), ActivationLogger(["net.0", "net.2"])],
            "ActivationLogger (callback 1) and ActivationLogger (callback 2)",
            "5 or more of the same tags (such as 'activation_mean/net.0'",
        ),
        (
            lambda: [
                ActivationLogger("net.0", histogram=True, statistics="std"),
                ActivationLogger("net.0", histogram=True, statistics="min"),
            ],
            "ActivationLogger (callback 1) and ActivationLogger (callback 2)",
            "1 or more of the same tags (such as 'activations/net.0'",
        ),
        (
            lambda: [
                ParameterLogger("net.0"),
                GradientLogger(roles="parameter_grad", statistics="l2"),
                ParameterLogger("net.0", statistics="update_norm"),
            ],
            "ParameterLogger (callback 1) and ParameterLogger (callback 3)",
            "2 or more of the same tags (such as 'parameter_update_norm/net.0.weight'",
        ),
        (
            lambda: [ActivationLogger("net.0", statistics="std") for _ in range(3)],
            "ActivationLogger (callback 1) and ActivationLogger (callback 2) and ActivationLogger (callback 3)",
            "1 or more of the same tags (such",
        ),
        (
            lambda: [HealthMonitor(), HealthMonitor(rules="spike")],
            "HealthMonitor (callback 1) and HealthMonitor (callback 2)",
            "1 or more of the same tags (such as 'health/verdict'",
        ),
    ],
)
def test_callbacks_that_write_one_tag_are_named_once(tmp_path, make, names, tags):
    (said,) = said_in(tmp_path, mlp(), *make())
    assert names in said
    assert f"write {tags}" in said


@pytest.mark.parametrize(
    ("make", "tag"),
    [
        (
            lambda: [KernelLogger(), KernelLogger(kernels=4)],
            "2 or more of the same tags (such as 'kernels/net.1'",
        ),
        (
            lambda: [FeatureMapLogger(every_n_steps=9), FeatureMapLogger("net.1")],
            "1 or more of the same tags (such as 'feature_maps/net.1'",
        ),
    ],
)
def test_callbacks_that_write_one_picture_are_named_too(tmp_path, make, tag):
    (said,) = said_in(tmp_path, convolutions(), *make())
    assert tag in said


def test_maps_of_a_layer_that_is_yet_to_be_chosen_are_named(tmp_path):
    callbacks = [CAMLogger(), CAMLogger(target="label"), CAMLogger(method="cam")]
    clash, *no_pictures = said_in(tmp_path, mlp(), *callbacks, limit_val_batches=1.0)
    assert "write 1 or more of the same tags (such as 'cam/<layer>/grad_cam'" in clash
    assert all("no module took pictures" in said for said in no_pictures)


def test_what_is_named_begins_a_tag_that_is_written_also_of_a_module_with_several_outputs(tmp_path):
    equal = [ActivationLogger("net", statistics="mean") for _ in range(2)]
    (said,) = said_in(tmp_path, nn.LSTM(4, 3), *equal, loss=lambda y: y[0].square().mean())
    named = re.search("such as '(.*?)'", said).group(1)
    assert [tag for tag in scalars(tmp_path) if tag.startswith(named)] == [f"{named}/{i}" for i in ("0", "1/0", "1/1")]


@pytest.mark.parametrize("position", ["first", "last"])
def test_in_a_validation_alone_too_wherever_callbacks_stand_that_take_no_part(tmp_path, position):
    validating = [ActivationLogger("net.0", stages="validate", statistics="mean") for _ in range(2)]
    given = [KernelLogger(), *validating] if position == "first" else [*validating, KernelLogger()]
    with pytest.warns(HookboardWarning, match="such as 'validate_activation_mean/net.0'"):
        trainer(tmp_path, *given, limit_val_batches=1).validate(Toy(mlp()), loader(batches(4)), verbose=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [ActivationLogger("net.0"), ActivationLogger("net.2")],
        lambda: [ActivationLogger(statistics="std"), ActivationLogger(statistics="min")],
        lambda: [ActivationLogger(), ActivationLogger(roles="input")],
        lambda: [ActivationLogger(), ActivationLogger(stages="validate")],
        lambda: [ActivationLogger(), ActivationLogger(stages=["validate", "test"])],
        lambda: [ActivationLogger(), GradientLogger(roles=["grad_output", "parameter_grad"]), ParameterLogger()],
        lambda: [Intervention(Scale(2.0), "net.0"), Intervention(Scale(2.0), "net.2", role="grad_output")],
    ],
)
def test_callbacks_that_share_no_tag_say_nothing(tmp_path, make):
    assert said_in(tmp_path, mlp(), *make()) == []


@pytest.mark.parametrize("make", [HealthMonitor, ActivationLogger])
def test_callbacks_that_write_nowhere_say_nothing(make):
    assert said_in(None, mlp(), make(), make()) == []


def test_a_callback_that_is_given_twice_writes_each_tag_once_and_says_nothing(tmp_path):
    monitor = HealthMonitor()
    assert said_in(tmp_path, mlp(), monitor, monitor) == []
    steps = [event.step for event in events(tmp_path).Scalars("health/activation_rms/median")]
    assert len(steps) == len(set(steps)) > 0


def test_two_interventions_of_one_role_are_no_fault(tmp_path):
    edits = [Intervention(Scale(2.0), "net.0"), Intervention(Scale(3.0), "net.2")]
    assert said_in(tmp_path, mlp(), *edits) == []
    assert "interventions/output/text_summary" in events(tmp_path).Tags()["tensors"]


@pytest.mark.parametrize(("layers", "is_said"), [(400, False), (401, True)])
def test_more_tags_than_anybody_looks_at_are_said_with_how_to_narrow_them(tmp_path, caplog, layers, is_said):
    net = nn.Sequential(*(nn.Identity() for _ in range(layers)))
    with caplog.at_level("INFO"):
        fit(tmp_path, Toy(nn.Sequential(net, nn.Linear(4, 2))), batches(4), ActivationLogger("net.0.*"))
    said = [record.message for record in caplog.records if "tags, too many" in record.message]
    assert len(said) == is_said
    if is_said:
        assert "ActivationLogger will write 2,005 tags" in said[0]
        assert "modules='encoder.*'" in said[0]
