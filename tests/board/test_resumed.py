"""A fit that is resumed from a checkpoint in the same folder, and what was measured before, are shown as one run."""

from dataclasses import replace

import numpy as np
import pytest
from board.logs import fast, record, slow, write
from board.runs import HEALTH_RECORD, VERDICT
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from toys import ALWAYS, Toy, batches, loader, mlp, trainer

from hookboard import Finding, HealthMonitor, Rule, read
from hookboard.base.records import HEALTH
from hookboard.board.command import main
from hookboard.health.page import values_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:You.re resuming from a checkpoint", "ignore:Be aware that when using .ckpt_path"
)

DATA = batches(*[4] * 26)


def is_first(run):
    if run.first.step == 0:
        yield Finding("net.2", f"it has been odd since step {run.first.step}", "look")


def is_late(run):
    if run.now.step >= 12 and run.first.step == 0:
        yield Finding("net.2", "it is late", "wait")


RULES = [ALWAYS, Rule("is_first", is_first), Rule("is_late", is_late)]


def fit(folder, steps, data, *callbacks, **options):
    """A fit up to this step, which writes into version_0."""
    monitor = HealthMonitor(every_n_steps=1, rules=RULES)
    logger = TensorBoardLogger(folder, name=None, version=0)
    saves = {"enable_checkpointing": bool(callbacks), "logger": logger, "max_epochs": None, "max_steps": steps}
    trainer(folder, monitor, *callbacks, **saves).fit(Toy(mlp()), loader(data), loader(data), **options)
    return monitor


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The log directory with the run, and the monitors of a fit of 26 steps and of the one resumed after the tenth."""
    folder = tmp_path_factory.mktemp("resumed") / "logs"
    saving = ModelCheckpoint(folder.parent / "saved", filename="{step}", every_n_train_steps=10, save_top_k=-1)
    first = fit(folder, 26, DATA, saving)
    second = fit(folder, 20, DATA[::-1], ckpt_path=folder.parent / "saved" / "step=10.ckpt")
    return folder, first, second


def test_the_numbers_are_those_of_both_and_the_later_ones_where_steps_were_repeated(resumed):
    folder, first, second = resumed
    measured = read(folder / "version_0").readings["health/activation_rms"]
    assert measured.steps.tolist() == [*range(20)]
    one, two = (values_of(monitor._run, "activation_rms").astype("f4") for monitor in (first, second))
    assert not np.array_equal(one[:, 10:20], two[:, :10])
    np.testing.assert_array_equal(measured.values, np.hstack([one[:, :10], two]))


def test_the_verdicts_of_both_are_shown_and_those_of_the_first_end_where_the_second_begins(resumed):
    folder, first, _ = resumed
    assert {verdict.rule for verdict in first.verdicts} == {"always", "is_first", "is_late"}
    run = read(folder / "version_0")
    found = [(one.severity, one.rule, one.module, one.since, one.until) for one in run.verdicts]
    assert found == [
        ("alarm", "always", "net.0", 0, None),
        ("note", "is_first", "net.2", 0, 9),
    ]
    assert all(
        f"measured {n} times from step {ends}" in run.headline for n, ends in ((26, "0 to 25"), (10, "10 to 19"))
    )


def test_the_commands_show_both(resumed, tmp_path, capsys):
    folder, *_ = resumed
    assert main(["verdicts", str(folder)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("alarm: always in net.0 since step 10: ") == 1  # as it was printed
    assert said.count("note: is_first in net.2 since step 0: ") == 1
    main(["runs", str(folder)])
    assert capsys.readouterr().out.splitlines()[2].split() == ["alarm:", "always;", "note:", "is_first"]
    assert main(["report", str(folder), "-o", str(tmp_path / "report.html")]) == 0


@pytest.mark.parametrize("loader", [slow, lambda folder: fast(folder, 1)], ids=["slow", "fast"])
def test_the_tab_is_given_both_by_each_loader(resumed, loader):
    with loader(resumed[0]) as board:
        (run,) = board.ask("runs")[1]["runs"]
        assert (run["alarms"], run["notes"], run["is_over"]) == (1, 1, True)
        _, shown = board.ask("map", run="version_0", series="health/activation_rms", columns=100)
        assert shown["steps"] == [*range(20)]


def part(number, steps, **fields):
    """A health record of a fit from the first of these steps, whose values are this number."""
    layers = HEALTH_RECORD.layers
    values = {"activation_rms": np.full((len(layers), len(steps)), number, np.float32)}
    fields = {"verdicts": (), "cards": (), "headline": f"{number}.", **fields}
    return replace(HEALTH_RECORD, steps=tuple(steps), values=values, **fields)


def written(folder, *parts):
    tags = [HEALTH if one.steps[0] == 0 else f"{HEALTH}/{one.steps[0]}" for one in parts]
    write(folder, [record(one.steps[-1], tag, one.strings()) for tag, one in zip(tags, parts, strict=True)])
    return read(folder)


def test_a_fit_that_is_resumed_from_before_replaces_all_after_it(tmp_path):
    run = written(tmp_path / "run", part(1, range(20)), part(2, range(20, 40)), part(3, range(10, 15)))
    measured = run.readings["health/activation_rms"]
    assert measured.steps.tolist() == [*range(15)]
    assert measured.values[0].tolist() == [1] * 10 + [3] * 5
    assert run.headline == "1. 3."


def test_what_had_ended_is_another_verdict_and_layers_and_quantities_of_both_are_shown(tmp_path):
    ended = {**VERDICT, "severity": "note", "since": 3, "until": 5}
    again = {**VERDICT, "severity": "alarm", "since": 22, "until": None}
    one = part(1, range(20), verdicts=(ended,))
    two = part(2, range(20, 30), verdicts=(again,))
    values = {"gradient_rms": two.values["activation_rms"][:1]}
    run = written(tmp_path / "run", one, replace(two, layers=("new",), values=values))
    assert [(v.severity, v.since, v.until) for v in run.verdicts] == [("alarm", 22, None), ("note", 3, 5)]
    assert run.readings["health/activation_rms"].steps.tolist() == [*range(20)]
    assert run.readings["health/gradient_rms"]["new"].tolist() == [2] * 10
