"""`hookboard run`: a script runs as without us, and a Trainer has a monitor; of another loop it is said how to."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("spawns")]

NET = """
import sys, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(1))
x, y = torch.randn(64, 4), torch.arange(64) % 3
def total():
    return sum(p.detach().double().sum() for p in net.parameters()).item()
"""

BARE = f"""{NET}
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(4):
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
print(total(), sys.argv[1:])
sys.exit(3)
"""

LIGHTNING = f"""{NET}
from lightning.pytorch import LightningModule, Trainer
class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)
if __name__ == "__main__":
    trainer = Trainer(max_steps=4, accelerator="cpu", devices=2, logger=False, enable_progress_bar=False,
                      enable_model_summary=False)
    trainer.fit(Model(), torch.utils.data.DataLoader(list(zip(x, y)), batch_size=8))
    kept = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
    if trainer.is_global_zero:
        print(total(), *kept["callbacks"])
"""

IN_TRANSFORMERS = f"""{NET}
from transformers import Trainer, TrainingArguments
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, x, y):
        return {{"loss": nn.functional.cross_entropy(self.net(x), y)}}
arguments = TrainingArguments("out", max_steps=6, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
                              remove_unused_columns=False)
Trainer(Model(), arguments, train_dataset=[{{"x": a, "y": b}} for a, b in zip(x, y)]).train()
print(total())
"""

WARM = "import runpy, sys; sys.executable, *sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""Runs a script whose other processes are warm too."""


@pytest.fixture
def python(python, tmp_path):
    """Runs a script with `python`, or with `hookboard run` and its options, and returns how it ended.

    Only `hookboard run` needs a Python that starts as it does for a user: the other one is warm, unless told not to be.
    """

    def run(text, *given, options=None, name="train.py", is_warm=True, **environment):
        (tmp_path / name).write_text(textwrap.dedent(text))
        bare = [python, "-c", WARM, python] if is_warm else [sys.executable]
        start = bare if options is None else [sys.executable, "-m", "hookboard", "run", *options]
        command = [*start, *([] if "-m" in (options or ()) else [name]), *given]
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)

    return run


def verdicts(tmp_path):
    return [(one["severity"], one["rule"]) for one in json.loads((tmp_path / "found.json").read_text())]


JSON = ("--json", "found.json")


def test_a_script_is_started_as_python_starts_it(python):
    text = "import sys; print(sys.argv, __name__, sys.path[0], __file__, 'hookboard' in sys.modules)"
    bare, run = python(text, "--lr", "1", is_warm=False), python(text, "--lr", "1", options=[])
    assert bare.stdout == run.stdout != ""
    assert (run.returncode, run.stderr) == (0, "")


def test_a_signal_that_ends_the_script_ends_the_command(python):
    run = python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", options=[])
    assert run.returncode == -signal.SIGTERM


def test_a_sitecustomize_that_ours_hides_runs_too_and_processes_know_how_often_to_measure(python, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("print('mine')")
    path = os.pathsep.join([str(tmp_path / "mine"), os.environ.get("PYTHONPATH", "")])
    text = """
    import json, os, sys
    print(json.loads(os.environ["HOOKBOARD_RUN"])["every_n_steps"], sys.modules["sitecustomize"].__file__)
    """
    run = python(text, options=["--every-n-steps", "10"], PYTHONPATH=path)
    assert run.stdout.split()[-3:] == ["mine", "10", str(tmp_path / "mine" / "sitecustomize.py")]


def test_a_process_without_hookboard_is_not_watched_and_a_module_that_was_looked_up_before_is(python, tmp_path):
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("")
    (tmp_path / "transformers" / "trainer.py").write_text("class Trainer:\n    def train(self): print('trained')")
    text = """
    import importlib.util, sys
    sys.modules["hookboard"] = None
    importlib.util.find_spec("transformers.trainer")
    from transformers.trainer import Trainer
    Trainer().train()
    """
    run = python(text, options=[])
    assert (run.returncode, run.stdout) == (0, "trained\n")
    assert run.stderr.startswith("hookboard: training is not watched (ModuleNotFoundError")


def test_a_loop_without_a_trainer_runs_as_without_us_and_it_is_said_how_to_watch_it(python, tmp_path):
    bare, run = python(BARE, "--lr"), python(BARE, "--lr", options=JSON)
    assert (run.stdout, run.returncode) == (bare.stdout, bare.returncode) == (bare.stdout, 3)
    assert verdicts(tmp_path) == []
    assert "nothing was watched because the script called no Trainer. Wrap a loop of your own" in run.stderr
    assert "`with hookboard.watch(model, optimizer, hookboard.HealthMonitor()) as run:`" in run.stderr


@pytest.mark.parametrize(("ends", "is_said"), [("", True), ("raise SystemExit(3)", True), ("1 / 0", False)])
def test_that_nothing_was_watched_is_said_unless_the_script_has_failed(python, ends, is_said):
    steps = "import torch\nw = torch.ones(2, requires_grad=True)\nw.sum().backward()\nw.data -= w.grad\nprint(w)\n"
    bare, run = python(steps + ends), python(steps + ends, options=[])
    assert (run.stdout, run.returncode) == (bare.stdout, bare.returncode)
    assert ("hookboard: nothing was watched because" in run.stderr) is is_said


def test_both_processes_of_a_trainer_have_a_monitor_and_its_checkpoint_is_as_without_us(python, tmp_path):
    bare, run = python(LIGHTNING), python(LIGHTNING, options=JSON)
    assert run.stdout == bare.stdout != ""
    assert "`hookboard run` added a HealthMonitor() to this Trainer." in run.stderr
    assert verdicts(tmp_path)[0] == ("alarm", "loss_input")


def test_verdicts_of_processes_that_lightning_has_started_are_written_too(python, tmp_path):
    text = LIGHTNING.replace("devices=2", 'devices=1, strategy="ddp_spawn"').replace(
        "if trainer.is_global_zero", "if 0"
    )
    python(text, options=JSON)
    assert verdicts(tmp_path)[0] == ("alarm", "loss_input")


def test_processes_of_launchers_are_watched(python, tmp_path):
    given = ["-m", "torch.distributed.run", "--nproc-per-node=1", "train.py"]
    run = python(LIGHTNING.replace("devices=2", "devices=1"), options=[*JSON, *given])
    assert verdicts(tmp_path)[0] == ("alarm", "loss_input")
    assert "nothing was watched" not in run.stderr


def test_a_trainer_of_hugging_face_gets_a_monitor_for_a_module_too(python, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    bare, run = python(IN_TRANSFORMERS), python(IN_TRANSFORMERS, options=[*JSON, "-m", "train"])
    assert run.stdout.splitlines()[-1] == bare.stdout.splitlines()[-1]
    assert "added a HealthMonitor() to this Trainer." in run.stderr
    assert verdicts(tmp_path)[0] == ("alarm", "loss_input")
