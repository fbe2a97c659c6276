"""The callbacks also serve the package of the other name, whose Trainer and loggers are other classes."""

from types import SimpleNamespace

import pytest
import torch
from toys import batches, events, loader, mean_square, mlp, scalars

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger, audit, checkup
from hookboard.loops.trainer import TrainerLoop

pl = pytest.importorskip("pytorch_lightning")
if tuple(map(int, pl.__version__.split(".")[:2])) < (2, 6):
    pytest.skip("pytorch_lightning before 2.6 takes no callbacks of the other package", allow_module_level=True)


class Toy(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.logged = 0

    def training_step(self, batch):
        self.logged += 1
        self.log("loss", loss := mean_square(self.net(batch)))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class SoftmaxToy(Toy):
    def training_step(self, batch):
        return torch.nn.functional.cross_entropy(self.net(batch).softmax(1), torch.zeros(len(batch), dtype=torch.long))


def fit(module, folder, *callbacks, **options):
    logger = pl.loggers.TensorBoardLogger(folder, name=None, version="")
    options |= {f"enable_{what}": False for what in ("checkpointing", "progress_bar", "model_summary")}
    options = {"max_epochs": 1, "accelerator": "cpu", "log_every_n_steps": 1} | options
    trainer = pl.Trainer(logger=logger, callbacks=list(callbacks), **options)
    trainer.fit(module, loader(batches(4, 4)))
    return trainer


def test_a_trainer_of_pytorch_lightning_logs_the_same_tags(tmp_path):
    fit(Toy(), tmp_path, *(cls(every_n_steps=1) for cls in (ActivationLogger, GradientLogger, ParameterLogger)))
    tags = ["activation_std/net.0", "gradient_std/net.2", "parameter_update_norm/net.0.weight"]
    found = scalars(tmp_path)
    assert [list(found[tag]) for tag in tags] == [[0, 1]] * 3
    assert {tag for tag in events(tmp_path).Tags()["tensors"] if tag.startswith("hookboard/")} == {
        f"hookboard/layers/{name}" for name in ("ActivationLogger", "GradientLogger", "ParameterLogger")
    }


def test_the_training_step_of_its_module_is_read_without_a_trace(tmp_path, capsys):
    monitor, module = HealthMonitor(every_n_steps=1), SoftmaxToy()
    fit(module, tmp_path, monitor)
    assert "not read" not in capsys.readouterr().out
    assert [(v.rule, v.module) for v in monitor.verdicts if v.rule == "loss_input"] == [("loss_input", "")]


def test_audit_and_checkup_take_its_module():
    found = audit(SoftmaxToy(), batches(4, 4)[0])
    assert [finding.rule for finding in found] == ["loss_input"]
    assert "loss_input" in [finding.rule for finding in checkup(SoftmaxToy(), batches(4, 4), seconds=0.1).findings]


@pytest.mark.parametrize("name", ["FSDPStrategy", "ModelParallelStrategy"])
def test_its_strategies_that_split_a_model_are_known(name):
    loop = TrainerLoop(SimpleNamespace(strategy=object.__new__(getattr(pl.strategies, name))))
    assert (loop.weights_kept_by, loop.is_model_parallel) == {
        "FSDPStrategy": ("FSDPStrategy", False),
        "ModelParallelStrategy": (None, True),
    }[name]
