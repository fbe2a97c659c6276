"""`Checkup` in a fit: the page, and the same training with it as without."""

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanMetric
from toys import events, scalars, trainer

from hookboard import ActivationLogger, Checkup, HealthMonitor

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


class Regression(LightningModule):
    def __init__(self, lr=0.01, manual=False):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.lr, self.automatic_optimization = lr, not manual
        self.mean, self.seen = MeanMetric(), []

    def training_step(self, batch, batch_idx):
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.mean(loss)
        self.log("loss", loss)
        self.log("mean", self.mean)
        self.seen.append(loss.item())
        if not self.automatic_optimization:
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Stream(IterableDataset):
    """Gives each sample once, whoever asks."""

    given = None

    def __iter__(self):
        self.given = self.given or iter(zip(X, Y, strict=True))
        return self.given


def pairs(**options):
    return DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True, **options)


def trained(folder, model, loader, *callbacks, **options):
    torch.manual_seed(1)
    run = trainer(folder, *callbacks, **options)
    run.fit(model, loader)
    return run


def made(**options):
    torch.manual_seed(0)
    return Regression(**options)


pytestmark = pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")

LOADERS = {
    "shuffled": pairs,
    "with a generator of its own": lambda: pairs(generator=torch.Generator().manual_seed(5)),
    "with workers": lambda: pairs(num_workers=1),
    "a stream that is read once": lambda: DataLoader(Stream(), batch_size=8),
    "batches that are made already": lambda: DataLoader([(X[:8], Y[:8]), (X[8:16], Y[8:16])], batch_size=None),
}


@pytest.mark.spawns
@pytest.mark.parametrize("make_loader", LOADERS.values(), ids=LOADERS)
def test_the_training_is_the_same_bit_for_bit(tmp_path, make_loader):
    runs = {}
    for name, callbacks in {"bare": [], "checked": [Checkup(seconds=5)]}.items():
        model = made()
        run = trained(tmp_path / name, model, make_loader(), *callbacks, max_epochs=2)
        tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters()), torch.get_rng_state()]
        tensors += [value for held in run.optimizers[0].state.values() for value in held.values()]
        logged = {tag: value for tag, value in scalars(tmp_path / name).items() if not tag.startswith("hookboard/")}
        runs[name] = [one.tolist() for one in tensors], model.seen, logged, run.callback_metrics
    assert runs["bare"] == runs["checked"]


@pytest.mark.filterwarnings("ignore:Encountered `nan` values in tensor")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_page_is_logged_and_written_as_text(tmp_path, lines, precision):
    checkup = Checkup(seconds=5)
    trained(tmp_path, made(lr=1e30), pairs(), checkup, precision=precision)
    [page] = [line for line in lines if "Checkup" in line]
    [event] = events(tmp_path).Tensors("checkup/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert [found.rule for found in checkup.report.findings] == ["cannot_learn"]
    assert "ALARM cannot_learn" in page
    assert "    ALARM cannot_learn" in text


def test_manual_optimization_is_skipped_with_one_line(lines):
    checkup = Checkup()
    trained(None, made(manual=True), pairs(), checkup)
    assert lines == ["Checkup tries nothing: it uses manual optimization."]
    assert checkup.report is None


def test_other_callbacks_see_nothing_of_it(tmp_path):
    for name, callbacks in {"alone": [], "together": [Checkup(seconds=5)]}.items():
        watching = [ActivationLogger(), HealthMonitor()]
        trained(tmp_path / name, made(), pairs(), *watching, *callbacks)
    assert scalars(tmp_path / "together") == scalars(tmp_path / "alone")


def test_gradients_are_clipped_as_in_the_training():
    """Without clipping, a rate of 1 would diverge."""
    checkup = Checkup(seconds=5)

    class Plain(Regression):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def training_step(self, batch, batch_idx):
            return 1000 * super().training_step(batch, batch_idx)

    torch.manual_seed(0)
    trained(None, Plain(), pairs(), checkup, gradient_clip_val=1.0)
    assert checkup.report.findings == ()


def test_a_schedule_that_draws_its_rates_from_an_iterator_is_left_alone():
    class Scheduled(Regression):
        def configure_optimizers(self):
            rates = (0.01 * step for step in range(100))
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: next(rates))
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    run = trained(None, Scheduled(), pairs(), Checkup(seconds=5), HealthMonitor())
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.01 * run.global_step)
