"""The callbacks also serve the package of the other name, whose Trainer and loggers are other classes."""

import pytest
from toys import batches, events, loader, mean_square, mlp, scalars

from hookboard import ActivationLogger, GradientLogger, ParameterLogger

pl = pytest.importorskip("pytorch_lightning")
if tuple(map(int, pl.__version__.split(".")[:2])) < (2, 6):
    pytest.skip("pytorch_lightning before 2.6 takes no callbacks of the other package", allow_module_level=True)


def test_a_trainer_of_pytorch_lightning_logs_the_same_tags(tmp_path):
    import torch

    class Toy(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def training_step(self, batch):
            return mean_square(self.net(batch))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    logger = pl.loggers.TensorBoardLogger(tmp_path, name=None, version="")
    callbacks = [cls(every_n_steps=1) for cls in (ActivationLogger, GradientLogger, ParameterLogger)]
    options = {f"enable_{what}": False for what in ("checkpointing", "progress_bar", "model_summary")}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=logger, callbacks=callbacks, **options)
    trainer.fit(Toy(), loader(batches(4, 4)))
    found = scalars(tmp_path)
    tags = ["activation_std/net.0", "gradient_std/net.2", "parameter_update_norm/net.0.weight"]
    assert [list(found[tag]) for tag in tags] == [[0, 1]] * 3
    assert {tag for tag in events(tmp_path).Tags()["tensors"] if tag.startswith("hookboard/")} == {
        f"hookboard/layers/{type(callback).__name__}" for callback in callbacks
    }
