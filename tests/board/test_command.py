"""The command `hookboard`: what it prints, and its exit status."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from board import runs
from board.logs import record, write
from board.sick_logs import SICK, VERDICTS
from documents.pages import commands

from hookboard import Verdict
from hookboard.base.messages import explained
from hookboard.base.records import HEALTH, HealthRecord
from hookboard.board.command import main, parser
from hookboard.health.report import cards_of, closing, folded_verdicts
from hookboard.health.run import Run
from hookboard.model.layers import Layer
from hookboard.tracing.questions import RULES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(logs, capsys, monkeypatch):
    """Runs the command in the folder above the logs; exit status, lines of output, lines of errors."""
    monkeypatch.chdir(logs.parent)
    monkeypatch.setattr(os, "execv", lambda *given: pytest.fail(f"this process would become {given}"))

    def run(*given):
        status = main([str(one) for one in given])
        shown = capsys.readouterr()
        return status, shown.out.splitlines(), shown.err.splitlines()

    return run


def judged(folder, verdicts, cards=(), layers=("a", "b", "c", "d"), headline="The headline."):
    fields = [{**vars(one)} for one in verdicts]
    values = {"activation_rms": np.ones((len(layers), 1))}
    texts = tuple(map(str, folded_verdicts(verdicts, layers)))
    written = HealthRecord(1, headline, tuple(fields), layers, (0,), values, tuple(map(vars, cards)), texts=texts)
    write(folder, [record(0, HEALTH, written.strings())])


def test_the_console_script_is_the_command():
    text = (ROOT / "pyproject.toml").read_text()
    module, name = re.search(r'^hookboard = "(.+):(.+)"$', text.partition("[project.scripts]")[2], re.M).groups()
    assert getattr(import_module(module), name) is main


def test_without_a_command_all_commands_are_listed_and_the_exit_status_is_2(command):
    status, shown, errors = command()
    assert (status, shown) == (2, [])
    named = [line.split()[0] for line in errors if line.startswith("    ")]
    assert named == ["run", "verdicts", "report", "runs", "explain"]


def test_verdicts_of_a_sick_run_are_printed_or_given_as_json_and_its_exit_status_is_1(command):
    status, shown, errors = command("verdicts", "logs/sick")
    assert (status, errors) == (1, [])
    assert shown[0] == "sick: 1 alarm and 1 note in 75 layers, measured 60 times from step 0 to 118."
    assert shown[1].startswith(f"  alarm: dead_units in {SICK} since step 10: 256 of 256 units were")
    assert shown[3].startswith("  note: no_gradient in encoder.layers.7.norm2 from step 20 to 60: ")
    assert max(map(len, shown)) <= 100
    status, shown, _ = command("verdicts", "logs/sick", "--json")
    (run,) = json.loads("\n".join(shown))
    assert (status, run["run"], run["headline"][:7]) == (1, "sick", "1 alarm")
    assert run["verdicts"] == [{**verdict, "follows_from": None, "rows": []} for verdict in VERDICTS]


def test_verdicts_are_in_the_words_of_the_summary_in_the_terminal(command, tmp_path):
    alike = [Verdict("alarm", "odd", f"net.{i}", 0, None, f"It gave {i}.", "Look.") for i in range(4)]
    effect = Verdict("note", "late", "head", 3, 9, "It is late.", "Wait.", follows_from=("odd", "net.2"))
    batch = Verdict("note", "spike", "", 5, 5, "It jumped.", "Lower the rate.", batch_idx=7)
    verdicts = [*alike, effect, batch]
    layers = ("net.0", "net.1", "net.2", "net.3", "head", "tail")
    judged(tmp_path / "run", verdicts, cards_of(verdicts), layers)
    _, shown, _ = command("verdicts", tmp_path / "run")
    lines = closing(Run({name: Layer(name, "Linear", "linear") for name in layers}, 1), verdicts)
    said = lines[lines.index("  Fix alarms first; notes may be side effects or intentional.") + 1 :]
    assert shown[1:] == said[: len(shown) - 1]


def test_a_rule_is_explained_in_plain_text_and_if_none_is_given_all_are_listed(command):
    status, (name, *shown), errors = command("explain", "collapsed")
    assert (status, name, errors) == (0, "collapsed", [])
    heads = [line.strip().partition(":")[0] for line in shown if not line.startswith("    ")]
    assert heads == ["Symptom", "Reported as", "Causes", "Fix", "When it is wrong"]
    assert shown[-1] == "  When it is wrong: the output is meant to be nearly the same for every sample."
    assert max(map(len, shown)) <= 100
    _, shown, _ = command("explain")
    assert {*re.findall(r"\w+", " ".join(line for line in shown if line.startswith(" ")))} == {*RULES}
    assert [name for name in RULES if not {"Symptom", "Reported as", "Fix"} <= explained(name).keys()] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["verdicts", "logs/sikc"], "unknown folder 'logs/sikc'; did you mean 'logs/sick'"),
        (["runs", "lgos/sick/deep"], "unknown folder 'lgos'; did you mean 'logs'?"),
        (["runs", "logs/empty/run"], "unknown folder 'logs/empty/run'; 'logs/empty' has no subfolders."),
        (["runs", "logs/theirs"], "no event file in 'logs/theirs' has hookboard data (TensorBoardLogger writes"),
        (["verdicts", "logs/theirs/events.out.tfevents.1.test"], "is a file; pass the folder of a run."),
        (["verdicts", "logs/a_loggers"], "HealthMonitor watched none of these runs."),
        (["explain", "dead_unit"], "unknown rule 'dead_unit'; did you mean 'dead_units'"),
        (["report", "logs/sick", "-o", "away/x.html"], "away/x.html"),
        (["run"], "run needs a script, as in: hookboard run train.py"),
        (["run", "--every-n-steps", "0", "train.py"], "--every-n-steps must be 1 or more, not 0."),
        (["run", "--off", "loss_inptu", "train.py"], "unknown rule 'loss_inptu'; did you mean 'loss_input'"),
        (["run", "--stop-on", "loss_inptu", "train.py"], "unknown rule 'loss_inptu'; did you mean 'loss_input'"),
        (["run", "--json", "logs/theirs/events.out.tfevents.1.test", "train.py"], "exists and is not a JSON list"),
    ],
)
def test_bad_input_is_quoted_and_its_exit_status_is_2(command, given, said):
    status, _, errors = command(*given)
    assert status == 2
    assert errors[0].startswith("hookboard: ")
    assert said in errors[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the names of folders are any bytes there alone")
def test_a_folder_whose_name_is_no_text_is_named_with_what_to_do(command, logs, tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"l\xe4ufe")
    shutil.copytree(os.fsencode(logs / "sick"), folder)
    for given in ("verdicts", "runs", "report"):
        status, shown, (line,) = command(given, tmp_path)
        assert (status, shown) == (2, [])
        assert line.startswith("hookboard: the path ")
        assert r"l\udce4ufe" in line
        assert line.endswith(
            "is not valid UTF-8, which TensorBoard requires; rename it, or set PYTHONUTF8=1 if the name is correct."
        )


def test_the_exit_status_is_that_of_the_worst_run_and_what_is_damaged_is_no_clean_bill_of_health(command, tmp_path):
    judged(tmp_path / "well", [Verdict("note", "odd", "a", 0, None, "It is odd.", "Look.")])
    status, shown, errors = command("verdicts", tmp_path)
    assert (status, shown[1], errors) == (0, "  note: odd in a since step 0: It is odd. Try: Look.", [])
    judged(tmp_path / "ill", [Verdict("alarm", "odd", "a", 0, 3, "It was odd.", "Look.")])
    status, shown, _ = command("verdicts", tmp_path)
    runs_shown = [line.partition(":")[0].rpartition("/")[2] for line in shown if not line.startswith(" ")]
    assert (status, runs_shown) == (1, ["ill", "well"])
    judged(tmp_path / "other" / "well", [])
    write(tmp_path / "other" / "corrupt", runs.RUNS["corrupt"])
    status, _, errors = command("verdicts", tmp_path / "other")
    assert (status, any("hookboard/health" in line for line in errors)) == (2, True)
    (path,) = (tmp_path / "ill").glob("*tfevents*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    status, _, errors = command("verdicts", tmp_path)
    assert (status, any("ill: the rest of its event files cannot be read" in line for line in errors)) == (2, True)


def test_runs_are_listed_with_the_worst_first(command):
    status, shown, errors = command("runs", "logs")
    assert (status, errors) == (0, [])
    assert shown[0].split() == ["alarms", "notes", "steps", "last", "point", "loss", "run"]
    runs = [line for line in shown[1:] if not line.startswith(" " * 7)]
    assert [line.split()[-1] for line in runs] == ["logs/zoo", "logs/sick", "logs/a_loggers"]
    assert runs[1].split()[:3] == ["1", "1", "118"]
    assert "1 train/loss" in runs[1]
    assert runs[2].split()[:3] == ["-", "-", "118"]
    assert all(re.search(r"  19\d\d-\d\d-\d\d \d\d:\d\d  1 train/loss ", one) for one in runs[1:])


def test_what_a_terminal_would_act_upon_is_not_printed(command, tmp_path):
    judged(
        tmp_path / "run", [Verdict("alarm", "odd", "a", 0, 3, "\x1b[2J\x07gone", "\x9b1mLook.")], headline="\x1b]0;me"
    )
    _, shown, _ = command("verdicts", tmp_path / "run")
    assert "\n".join(shown).replace("\n", "").isprintable()
    assert "?[2J?gone" in shown[1]


@pytest.mark.spawns
def test_the_command_needs_neither_torch_nor_lightning(logs):
    script = (
        "import sys; from hookboard.board.command import main; "
        "main(['verdicts', sys.argv[1]]); main(['runs', sys.argv[1]]);"
        "print([name for name in ('torch', 'lightning') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, logs], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("page", ["README.md", "docs/tab.md"])
def test_the_commands_of_the_pages_are_understood(page):
    found = [command for command in commands(page) if re.match("hookboard (?!report$)", command)]
    assert found
    for command in found:
        for one in command.split(", "):
            assert callable(parser().parse_args(shlex.split(one)[1:]).command)
