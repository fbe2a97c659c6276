"""Every argument of everything public: what means nothing is refused where it is given, in Python and in YAML."""

import inspect
import math
from typing import get_args

import numpy as np
import pytest
import torch
import toys
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import Callback
from torch import nn
from toys import Toy, events, fit, scalars

import hookboard
from hookboard import api


class Unusual:
    def __repr__(self):
        return "Unusual()"


GIVEN = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "-1": lambda: -1,
    "0": lambda: 0,
    "2": lambda: 2,
    "2.5": lambda: 2.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "''": lambda: "",
    "'x'": lambda: "x",
    "'re:('": lambda: "re:(",
    "b'x'": lambda: b"x",
    "[]": list,
    "[None]": lambda: [None],
    "['x']": lambda: ["x"],
    "()": lambda: (),
    "(1, 2)": lambda: (1, 2),
    "{}": dict,
    "{'x': 1}": lambda: {"x": 1},
    "{'x'}": lambda: {"x"},
    "generator": lambda: (name for name in ["x"]),
    "object": Unusual,
    "class": lambda: nn.Linear,
    "function": lambda: len,
    "module": lambda: nn.Linear(1, 1),
    "tensor": lambda: torch.tensor(2.0),
    "tensors": lambda: torch.ones(2),
    "array": lambda: np.array([1, 2]),
    "int64": lambda: np.int64(2),
    "float32": lambda: np.float32(0.5),
    "true": lambda: np.True_,
}
"""What users give by mistake, and what they may give."""

SWITCH = {"True", "False", "true"}
TEXT = {"''", "'x'", "'re:('"}
COUNT = {"2", "int64"}
NAMED = {"None", "''", "'x'", "['x']"}
NUMBER = {"-1", "0", "2", "2.5", "nan", "inf", "int64", "float32"}

MEANT = {
    "modules": NAMED,
    "types": TEXT | {"None", "['x']", "class"},
    "roles": set(),
    "role": set(),
    "stage": {"None"},
    "stages": set(),
    "every_n_steps": COUNT | {"None"},
    "statistics": set(),
    "histogram": SWITCH,
    "sync_dist": SWITCH,
    "audit": SWITCH,
    "samples": COUNT,
    "channels": COUNT,
    "kernels": COUNT,
    "size": COUNT,
    "window": COUNT,
    "batch_idx": COUNT | {"0"},
    "order": set(),
    "normalize": {"(1, 2)"},
    "method": set(),
    "target": COUNT | {"0"},
    "mean": set(),  # not without std
    "std": set(),
    "classes": {"None", "['x']"},
    "rules": {"None"},
    "nonfinite": set(),
    "stop_on": {"None"},
    "rule": {"function", "module"},
    "first_step": COUNT | {"0"},
    "last_step": COUNT | {"0", "None"},
    "min": NUMBER - {"nan"},
    "max": NUMBER - {"nan", "-1"} | {"None"},
    "max_norm": NUMBER - {"nan", "-1"},
    "dim": COUNT | {"0", "-1"},
    "seed": COUNT | {"0"},
    "copy": SWITCH,
    "device": {"None"},
    "calls": COUNT | {"None"},
    "edit": {"[]", "()"},
    "model": {"module"},
    "name": {"'x'"},  # with letters alone
    "measure": {"function", "module"},
    "merge": set(),
    "judge": {"function", "module"},
    "of": set(),
    "at_once": SWITCH,
    "look_at": TEXT,
    "about": TEXT,
    "gives": set(),
    "module": TEXT,
    "evidence": TEXT,
    "advice": TEXT,
    "severity": set(),
    "since": COUNT | {"0", "None"},
    "is_root": SWITCH,
    "is_hard": SWITCH,
    "seconds": {"2", "2.5", "int64", "float32"},
}
"""Which of these an argument of that name takes, wherever it is; `MEANT_THERE` has the exceptions."""

MEANT_BY_TYPE = {
    bool: SWITCH,
    float: NUMBER,
    int: COUNT | {"-1", "0"},
    str: TEXT,
    torch.Tensor: {"tensor", "tensors"},
    type(None): {"None"},
}
"""Which an argument may take whose name stands in neither: it takes nothing else, and may refuse some of these."""

NEEDED_BY_TYPE = {bool: True, float: 1.0, int: 1, str: "x", torch.Tensor: torch.ones(1)}
"""What an argument without a default is given, unless `NEEDED` says something else."""

MEANT_THERE = {
    ("CAMLogger", "stage"): set(),
    ("CAMLogger", "mean"): {"None"},
    ("CAMLogger", "std"): {"None"},
    ("Noise", "std"): NUMBER - {"nan", "inf", "-1"},
    ("capture", "modules"): {"None"},
    ("capture", "types"): {"None", "class"},
    ("Zero", "channels"): {"None", "(1, 2)"},
    ("watch", "optimizers"): {"[]", "()"},
    ("watch", "callbacks"): {"[]", "()"},
    ("watch", "loggers"): {"[]", "()"},
    ("watch", "scaler"): {"None"},
    ("Finding", "size"): NUMBER,
    ("Finding", "batch_idx"): COUNT | {"0", "None"},
    ("Finding", "rows"): {"()", "(1, 2)"},
    ("Finding", "until"): COUNT | {"0", "None"},
    ("Finding", "is_root"): SWITCH | {"None"},
    ("Finding", "is_hard"): SWITCH | {"None"},
    ("Finding", "rule"): TEXT,
}

NEEDED = {
    "Intervention": {"rule": hookboard.Zero()},
    "capture": {"model": nn.Sequential(nn.Linear(1, 1))},
    "watch": {"model": nn.Linear(1, 1), "optimizers": [], "callbacks": []},
    "Edit": {"rule": hookboard.Zero()},
    "Clamp": {"min": 0},
    "Statistic": {"name": "mine", "measure": torch.sum},
    "Rule": {"name": "mine", "judge": len},
    "Finding": {"module": "net", "evidence": "it is so", "advice": "look at it"},
}
RESULTS = {
    "Captured",
    "CapturedModule",
    "CheckupReport",
    "Comparison",
    "Difference",
    "Histogram",
    "HookboardWarning",
    "Measured",
    "Moments",
    "ReadRun",
    "Reading",
    "Run",
    "Site",
    "Verdict",
}
"""What users are given, and do not make."""


# Those left out run at once or need a package: tests/auditing, tests/experiments, tests/report, tests/callbacks.
CALLABLE = sorted({*api.__all__} - RESULTS - {"audit", "checkup", "compare", "for_transformers", "read", "record"})
ARGUMENTS = [(name, argument) for name in CALLABLE for argument in inspect.signature(getattr(api, name)).parameters]
IN_YAML = ["None", "True", "-1", "0", "2", "2.5", "nan", "'x'", "[]", "['x']", "{'x': 1}"]


def types_of(name):
    """Argument to its type, of a plain annotation."""
    return {each: p.annotation for each, p in inspect.signature(getattr(api, name), eval_str=True).parameters.items()}


def taken_by(name, argument):
    """What it must take, and what it may take; None if neither its name nor its type says so."""
    listed = MEANT_THERE.get((name, argument), MEANT.get(argument))
    if listed is not None:
        return listed, listed
    annotation = types_of(name)[argument]
    types = get_args(annotation) or (annotation,)
    return (set(), set().union(*map(MEANT_BY_TYPE.get, types))) if {*types} <= MEANT_BY_TYPE.keys() else None


def needed_by(name):
    parameters = inspect.signature(getattr(api, name)).parameters
    required = [each for each, parameter in parameters.items() if parameter.default is parameter.empty]
    by_type = {each: NEEDED_BY_TYPE.get(types_of(name)[each]) for each in required}
    return {**by_type, **NEEDED.get(name, {})}


def names_it(message, argument, value):
    """Whether it names the argument, and quotes the value or what is wrong in it."""
    within = value if isinstance(value, list | tuple) else []
    said = message.replace("\n", " ")
    return argument.removesuffix("s") in said and any(" ".join(repr(v).split())[:30] in said for v in [value, *within])


def faults(argument, labels, must, may, make, quotes=names_it):
    """What is wrong in how an argument takes or refuses values; `make` gives it a value, and returns what it kept."""
    wrong = []
    for label in labels:
        given = GIVEN[label]()
        try:
            kept = make(given)
        except (ArgumentError, ValueError) as error:
            if label in must:
                wrong.append(f"{label} is refused: {error}")
            elif not quotes(str(error), argument, given):
                wrong.append(f"{label}: unclear: {error}")
        except Exception as error:
            wrong.append(f"{label}: {error!r}")
        else:
            if label not in may:
                wrong.append(f"{label} is taken")
            elif kept is not given:
                wrong.append(f"{label} is not kept as it was given")
    return wrong


def faults_in_python(name, argument):
    if taken_by(name, argument) is None:
        return ["add it to MEANT or MEANT_THERE"]

    def make(given):
        made = getattr(api, name)(**{**needed_by(name), argument: given})
        if name == "capture":
            with made:
                pass
        return given if name in ("capture", "watch") else getattr(made, argument)

    return faults(argument, GIVEN, *taken_by(name, argument), make)


def faults_in_yaml(name, argument, parser):
    needed = {"rule": {"class_path": "hookboard.Zero"}} if name == "Intervention" else {}

    def make(given):
        arguments = {"class_path": f"hookboard.{name}", "init_args": {**needed, argument: given}}
        parser.instantiate_classes(parser.parse_object({"callback": arguments}))
        return given

    def names_the_argument(message, argument, given):
        return argument.removesuffix("s") in message

    return faults(argument, IN_YAML, set(), taken_by(name, argument)[1], make, names_the_argument)


def test_an_argument_means_something_or_is_refused_by_its_name():
    assert {each: found for each in ARGUMENTS if (found := faults_in_python(*each))} == {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of jsonargparse, as LightningCLI calls it
def test_in_yaml_it_is_refused_as_well():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Callback, "callback")
    of_callbacks = [(name, argument) for name, argument in ARGUMENTS if name in toys.CALLBACKS]
    assert {each: found for each in of_callbacks if (found := faults_in_yaml(*each, parser))} == {}


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


def logged_by(folder, number, real):
    """The tags and steps that callbacks write whose counts and numbers are made by these functions."""
    torch.manual_seed(0)
    one = {"samples": number(1), "batch_idx": number(0), "size": number(16), "every_n_steps": number(2)}
    late = hookboard.Rule("late", lambda run: [hookboard.Finding("net.0", "so", "go", since=number(1), size=real(0.5))])
    watching = [
        hookboard.ActivationLogger(every_n_steps=number(2)),
        hookboard.KernelLogger(kernels=number(2), channels=number(3), size=number(8), every_n_steps=number(2)),
        hookboard.FeatureMapLogger(channels=number(2), normalize=[real(0.0), real(1.0)], **one),
        hookboard.CAMLogger(target=number(1), mean=[real(0.5)] * 3, std=[real(0.25)] * 3, **one),
        hookboard.HealthMonitor(every_n_steps=number(1), window=number(1), rules=late),
        hookboard.Intervention(
            hookboard.Noise(real(0.5), number(3)), "net.4", first_step=number(1), last_step=number(2)
        ),
        hookboard.Intervention(hookboard.Clamp(real(-1.0), real(1.0)), "net.1"),
        hookboard.Intervention(hookboard.Zero([number(1)], number(1)), "net.0"),
    ]
    pictures = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    fit(folder, Toy(cnn()), pictures, *watching, limit_val_batches=2)
    assert len(watching[4].verdicts) == 1
    found = events(folder)
    health = [event.tensor_proto.string_val for event in found.Tensors("hookboard/health")]
    return {tag: [e.step for e in found.Images(tag)] for tag in found.Tags()["images"]}, scalars(folder), health


@pytest.mark.trains
def test_a_number_of_numpy_as_a_cadence_or_window_does_not_end_the_fit(tmp_path):
    logger = hookboard.ActivationLogger(every_n_steps=np.int8(100))
    monitor = hookboard.HealthMonitor(window=np.int64(5))
    fit(tmp_path, Toy(nn.Linear(4, 3)), [torch.ones(2, 4)] * 130, logger, monitor, log_every_n_steps=50)
    assert logger.readings


@pytest.mark.trains
def test_numbers_of_numpy_do_what_those_of_python_do(tmp_path):
    plain = logged_by(tmp_path / "python", int, float)
    assert {tag.partition("/")[0] for tag in plain[0]} == {"kernels", "feature_maps", "cam", "health"}
    assert logged_by(tmp_path / "numpy", np.int64, np.float32) == plain


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tensor": [1.0]}, r"tensor=\[1.0\]: pass a tensor"),
        ({"name": 3}, "name=3: pass a string"),
        ({"edit_grad": hookboard.Zero}, r"edit_grad=.*Zero.*: pass one of hookboard's rules, as in Zero\(\)"),
    ],
)
def test_what_cannot_be_watched_in_a_block_is_refused_by_its_name(given, message):
    with hookboard.capture(nn.Linear(1, 1)) as seen, pytest.raises(ValueError, match=message):
        seen.watch(**{"tensor": torch.ones(1, requires_grad=True), "name": "x", **given})
