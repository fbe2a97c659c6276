"""The real projects: each is pinned, has a short script with a fault, and what is said of it can be counted."""

import ast
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("sklearn")

from benchmarks.wild.__main__ import FAULTS, is_named, keep, sums, table
from benchmarks.wild.catalogue import PROJECTS, PROJECTS_FOLDER, Project
from benchmarks.wild.environment import install, is_installed, python_of, variables
from benchmarks.wild.inside import Run, same, trained

from hookboard import HealthMonitor

FOLDER = PROJECTS_FOLDER.parent
LINES = 40


@pytest.mark.parametrize("project", PROJECTS, ids=lambda each: each.name)
def test_a_project_is_pinned_and_its_short_script_has_a_source_a_fault_and_a_training(project):
    text = project.script.read_text()
    tree = ast.parse(text)
    assert project.needs
    assert all("==" in need for need in project.needs)
    assert ast.get_docstring(tree)
    assert sum(bool(line.strip()) for line in text.splitlines()) <= LINES
    kind, planted = project.said("FAULT")
    assert kind in FAULTS
    assert planted
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)][-1] == "train"


def test_every_script_is_in_the_catalogue_once():
    names = [project.name for project in PROJECTS]
    assert sorted(names) == sorted(path.stem for path in PROJECTS_FOLDER.glob("*.py") if path.stem != "__init__")


def row(name, *alarms, fault="", learned=True, advice=""):
    said = [{"severity": "alarm", "rule": rule, "module": "", "advice": advice} for rule in alarms]
    verdicts = [{"severity": "note", "rule": "not_updated", "module": "", "advice": ""}, *said]
    error = {"error": "", "loss": [1.0, 0.5], "identical": True}
    return {"name": name, "variant": "", "fault": fault, "learned": learned, "verdicts": verdicts, **error}


def test_a_fault_is_named_by_its_rule_or_in_the_advice_of_the_first_alarm():
    assert is_named(row("a", "update_too_large", "collapsed", fault="rate"))
    assert is_named(row("a", "not_learning", fault="rate", advice="Lower the learning rate, or warm it up from 0."))
    assert not is_named(row("a", "collapsed", "update_too_large", fault="rate"))
    assert not is_named(row("a", fault="frozen"))  # a note does not name it


def test_the_sums_count_projects_and_leave_out_what_did_not_learn():
    rows = [
        row("a"),
        row("b", "spike", "collapsed"),
        row("b"),
        row("c", "spike", learned=False),
        row("a", "update_too_large", fault="rate"),
        row("b", "spike", fault="rate"),
        row("c", fault="dropout"),
    ]
    assert list(sums(rows)) == [
        "1 of 2 healthy projects with an alarm",
        "1 of 3 healthy trainings with an alarm",
        "0 of them differ from the plain run",
        "faults: 2 of 3 found, 1 named first",
        "rate: 2 of 2 found, 1 named first",
        "dropout: 0 of 1 found, 0 named first",
        "not counted, as they did not run or learn: c",
    ]


def test_a_new_row_takes_the_place_of_that_of_the_same_training(tmp_path):
    file = tmp_path / "rows.json"
    keep([row("b"), row("a")], file)
    keep([row("b", "spike"), row("b", fault="rate")], file)
    kept = json.loads(file.read_text())
    assert [(one["name"], one["fault"], len(one["verdicts"])) for one in kept] == [
        ("a", "", 1),
        ("b", "", 2),
        ("b", "rate", 1),
    ]


@pytest.mark.parametrize("run", ["first_run.json", "run.json"])
def test_the_table_of_a_run_is_in_the_readme(run):
    written = (FOLDER / "README.md").read_text()
    assert "\n".join(table(json.loads((FOLDER / run).read_text()))) in written


def loop(run):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with run.loop(model, optimizer) as steps:
        for x in torch.randn(20, 16, 4):
            with steps.step(x):
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            run.loss(loss)


@pytest.mark.trains
def test_a_project_is_trained_the_same_with_and_without_a_monitor():
    plain, watched = Run("", False, None), Run("", False, HealthMonitor(every_n_steps=1))
    for run in (plain, watched):
        assert trained(SimpleNamespace(train=loop), run)[0] == ""
    assert same(plain, watched)
    assert len(plain.losses) == 20
    assert len(plain.kept) == 1


def descend(run):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.descend(model, optimizer, torch.randn(20, 16, 4), lambda x: (model(x) - x.sum(1, keepdim=True)).square().mean())


@pytest.mark.trains
@pytest.mark.parametrize("monitor", [None, HealthMonitor(every_n_steps=1)])
def test_the_usual_loop_trains_as_one_that_is_written_out(monitor):
    written, usual = Run("", False, None), Run("", False, monitor)
    for run, train in ((written, loop), (usual, descend)):
        assert trained(SimpleNamespace(train=train), run)[0] == ""
    assert same(written, usual)


@pytest.mark.trains
def test_an_error_of_a_project_is_kept_and_ends_nothing(capsys):
    run, here = Run("", False, None), Path.cwd()
    assert trained(SimpleNamespace(train=lambda run: 1 / 0), run)[0] == "ZeroDivisionError: division by zero"
    assert Path.cwd() == here


@pytest.mark.spawns
def test_an_environment_stands_on_the_packages_that_are_here_and_has_its_own(tmp_path):
    project = Project("nothing", (), "")
    assert not is_installed(project, tmp_path)
    assert install(project, tmp_path) == ""
    assert is_installed(project, tmp_path)
    where = "import torchmetrics, hookboard, sys; print(torchmetrics.__file__, sys.prefix, sep='\\n')"
    done = subprocess.run(
        [python_of(tmp_path / "nothing"), "-c", where], env=variables(), capture_output=True, text=True
    )
    torchmetrics, prefix = done.stdout.split()
    assert torchmetrics == __import__("torchmetrics").__file__
    assert prefix == str(tmp_path / "nothing")
