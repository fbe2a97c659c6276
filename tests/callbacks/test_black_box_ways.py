"""The black box beside everything that a training may do: manual optimization, accumulation, checkpoints and so on."""

import math
import warnings

import pytest
import torch
from boxes import Box, Keeps, assert_undisturbed, events_of, only_event
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchmetrics import MeanMetric
from toys import Toy, batches, fit, mlp

from hookboard import Intervention, Noise


def root_of_zero(x):
    return torch.sqrt(x * 0) + x


class Faulty(nn.Module):
    """Applies its fault in one batch."""

    def __init__(self, fault, at=2):
        super().__init__()
        self.fault, self.at, self.batch_idx = fault, at, 0

    def forward(self, x):
        return self.fault(x) if self.batch_idx == self.at else x


def net(fault, at=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Faulty(fault, at), nn.Dropout(0.2), nn.Linear(4, 3))


class Tells(Keeps):
    """Tells its modules the batch, and has side effects."""

    def __init__(self, net):
        super().__init__(net)
        self.metric = MeanMetric()
        self.seen = {"batches": []}
        self.calls = 0

    def tell(self, batch_idx):
        for module in self.net.modules():
            module.batch_idx = batch_idx

    def training_step(self, batch, batch_idx):
        self.tell(batch_idx)
        self.calls += 1
        self.seen["batches"].append(batch_idx)
        loss = super().training_step(batch)
        self.metric(loss.detach().nan_to_num())
        self.log("metric", self.metric)
        self.log("batches", 1.0 + batch_idx, on_step=False, on_epoch=True, reduce_fx="sum")
        return {"loss": loss, "more": batch}


FAULTS = {"forward": torch.log, "backward": root_of_zero}
every_pass = pytest.mark.parametrize("during", FAULTS)


@every_pass
def test_side_effects_of_the_step_are_taken_back(during):
    models = []

    def make():
        models.append(Tells(net(FAULTS[during])))
        return models[-1]

    box = assert_undisturbed(make, batches(*[8] * 5))
    event = box.events[0]
    assert (event.module, event.during, event.step) == ("net.2", during, 2)
    bare, watched = models
    assert bare.calls == watched.calls == 5
    assert bare.seen == watched.seen
    assert bare.metric.update_count == watched.metric.update_count


class Manual(Tells):
    """Two backward passes and two steps for each batch."""

    def __init__(self, net):
        super().__init__(net)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.tell(batch_idx)
        optimizer = self.optimizers()
        for factor in (1.0, 0.5):
            optimizer.zero_grad()
            loss = factor * self.net(batch).square().mean()
            self.log("loss", loss)
            self.losses.append(loss.detach())
            self.manual_backward(loss)
            optimizer.step()


@every_pass
def test_manual_optimization(during):
    box = assert_undisturbed(lambda: Manual(net(FAULTS[during])), batches(*[8] * 4))
    event = box.events[0]
    assert (event.module, event.during, event.batch_idx) == ("net.2", during, 2)


@every_pass
def test_optimizers_that_the_step_takes_from_the_trainer_do_not_step_again(during):
    class Takes(Manual):
        def training_step(self, batch, batch_idx):
            self.tell(batch_idx)
            self.manual_backward(self.net(batch[:4]).square().mean())
            self.trainer.optimizers[0].step()
            loss = self.net(batch).square().mean()
            self.losses.append(loss.detach())
            self.manual_backward(loss)
            self.trainer.optimizers[0].step()

    model = Takes(nn.Sequential(nn.Linear(4, 4), Faulty(FAULTS[during]), nn.Linear(4, 2)))
    model.net[1].forward = lambda x: model.net[1].fault(x) if model.net[1].batch_idx == 2 and len(x) == 8 else x
    before, after = [], []

    class Sees(Box):
        def on_after_backward(self, trainer, pl_module):
            before.append(pl_module.net[2].weight.detach().clone())
            super().on_after_backward(trainer, pl_module)
            after.append(pl_module.net[2].weight.detach().clone())

    box = Sees()
    fit(None, model, batches(*[8] * 3), box)
    assert box.box.events[0].module == "net.1"
    assert torch.stack(before).equal(torch.stack(after))


def test_a_network_that_was_exchanged_in_the_run_is_looked_at(monkeypatch):
    monkeypatch.setattr("hookboard.first_nan.black_box.CHECK_EVERY_N_BATCHES", 1)

    class Exchanges(Tells):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 0:
                self.net = net(root_of_zero)
                self.trainer.optimizers[0].param_groups[0]["params"] = list(self.net.parameters())

    event = events_of(Exchanges(mlp()), batches(*[8] * 4))[0]
    assert (event.module, event.during, event.step) == ("net.2", "backward", 2)


class Gan(Tells):
    """Two optimizers and closures; the fault lies in the second loss."""

    def __init__(self, net):
        super().__init__(net)
        self.automatic_optimization = False
        self.other = mlp()

    def training_step(self, batch, batch_idx):
        self.tell(batch_idx)
        one, two = self.optimizers()
        self.toggle_optimizer(one)
        loss = self.other(batch).square().mean()
        one.zero_grad()
        self.manual_backward(loss)
        one.step()
        self.untoggle_optimizer(one)

        def closure():
            loss = self.net(batch).square().mean()
            self.losses.append(loss.detach())
            two.zero_grad()
            self.manual_backward(loss)

        with two.toggle_model():
            two.step(closure=closure)

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.other, self.net)]


@every_pass
def test_two_optimizers_with_closures(during):
    box = assert_undisturbed(lambda: Gan(net(FAULTS[during])), batches(*[8] * 4))
    event = box.events[0]
    assert (event.module, event.during, event.batch_idx) == ("net.2", during, 2)


class Retains(Manual):
    """Two backward passes through one graph: a rerun between them must leave what the graph holds as it was."""

    def training_step(self, batch, batch_idx):
        self.tell(batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        y = self.net(batch)
        self.manual_backward(y.square().mean(), retain_graph=True)
        self.manual_backward(y.abs().mean())
        self.losses.append(y.detach().mean())
        optimizer.step()


@every_pass
def test_a_graph_that_is_used_again_after_the_rerun(during):
    box = assert_undisturbed(lambda: Retains(net(FAULTS[during])), batches(*[8] * 4))
    assert box.events[0].module == "net.2"


@every_pass
def test_a_backward_of_the_users_own_is_not_run_again(during):
    class Own(Manual):
        def training_step(self, batch, batch_idx):
            self.tell(batch_idx)
            optimizer = self.optimizers()
            optimizer.zero_grad()
            loss = self.net(batch).square().mean()
            self.losses.append(loss.detach())
            loss.backward()
            optimizer.step()

    box = assert_undisturbed(lambda: Own(net(FAULTS[during])), batches(*[8] * 4))
    event = box.events[0]
    assert (event.is_located, event.batch_idx, event.during) == (False, 2, "backward")


@every_pass
def test_accumulation_names_the_batch(during):
    box = assert_undisturbed(lambda: Tells(net(FAULTS[during], at=4)), batches(*[8] * 8), accumulate_grad_batches=4)
    event = box.events[0]
    assert (event.module, event.during, event.step, event.batch_idx) == ("net.2", during, 1, 4)


class Checkpointed(nn.Module):
    def __init__(self, inner, reentrant):
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def checkpointed(fault, reentrant):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 4), Faulty(fault), nn.Dropout(0.2), nn.Linear(4, 4))
    return nn.Sequential(nn.Linear(4, 4), Checkpointed(inner, reentrant), nn.Linear(4, 2))


@every_pass
def test_a_checkpointed_module(during):
    box = assert_undisturbed(lambda: Tells(checkpointed(FAULTS[during], False)), batches(*[8] * 4))
    assert box.events[0].module == "net.1.inner.1"


@every_pass
def test_a_checkpoint_of_the_old_kind(during):
    box = assert_undisturbed(lambda: Tells(checkpointed(FAULTS[during], True)), batches(*[8] * 4))
    event = box.events[0]
    assert (event.during, event.step) == (during, 2)
    assert event.is_located == (during == "forward")


@every_pass
def test_a_batch_with_an_iterator_is_not_run_again(during):
    class Reads(Tells):
        def training_step(self, batch, batch_idx):
            return super().training_step(next(batch["parts"]), batch_idx)

    data = [{"parts": iter([x])} for x in batches(*[8] * 4)]
    event = events_of(Reads(net(FAULTS[during])), data)[0]
    assert (event.is_located, event.step, event.during) == (False, 2, during)
    assert "iterator" in event.evidence


class Remembers(nn.Module):
    """Its fault cannot be had again: a generator has moved on."""

    def __init__(self):
        super().__init__()
        self.left = (factor for factor in (1.0, 1.0, math.nan, 1.0, 1.0, 1.0))

    def forward(self, x):
        return x * next(self.left)


def test_what_does_not_happen_again_is_said():
    event = only_event(Toy(nn.Sequential(nn.Linear(4, 4), Remembers())), batches(*[8] * 4))
    assert (event.is_located, event.step) == (False, 2)
    assert "finite loss" in event.evidence


def test_a_step_that_fails_when_it_runs_again():
    calls = []

    class Fails(Toy):
        def training_step(self, batch):
            calls.append(batch)
            if len(calls) == 2:
                raise LookupError("only once")
            return super().training_step(batch) * math.nan

    event = only_event(Fails(mlp()), batches(8, 8))
    assert (event.is_located, event.step) == (False, 0)
    assert "LookupError: only once" in event.evidence


def test_a_fault_of_ours_never_stops_training(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("hookboard.first_nan.black_box.Search", fail)
    with pytest.warns(UserWarning, match=r"switched off.*a fault of ours"):
        fit(None, Toy(mlp(), lambda y: y.mean() * math.nan), batches(8, 8), Box())


def test_overflows_under_a_grad_scaler_are_no_event():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    box = Box(is_scaled=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(None, Toy(mlp(), lambda y: 1e3 * y.float().square().mean()), batches(*[8] * 4), box, plugins=plugin)
    assert scaler.get_scale() < 2.0**127
    assert (box.box.events, box.box.count) == ([], 0)


def test_a_fault_under_a_grad_scaler():
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    box = Box(is_scaled=True)
    fit(None, Tells(net(torch.log)), batches(*[8] * 4), box, plugins=plugin)
    event = box.box.events[0]
    assert (event.module, event.during, event.step) == ("net.2", "forward", 2)


def to_nan(tensor):
    return tensor * math.nan


def test_an_intervention_is_in_force():
    edit = Intervention(to_nan, "net.0", first_step=2)
    model = Toy(nn.Sequential(nn.Linear(4, 4), mlp()))
    box = Box()
    fit(None, model, batches(*[8] * 4), edit, box)
    assert (box.box.events[0].module, box.box.events[0].step) == ("net.0", 2)


def test_noise_of_an_intervention_goes_on_where_it_was():
    def trained(*callbacks):
        model = Tells(net(torch.log))
        fit(None, model, batches(*[8] * 4), Intervention(Noise(0.1), "net.0"), *callbacks)
        return torch.stack(model.losses)

    assert torch.equal(trained().nan_to_num(7), trained(Box()).nan_to_num(7))


def test_the_projection_of_attention_is_named_though_it_is_never_called():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTM(4, 4, batch_first=True)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            x = self.cell(x)[0]
            return self.attention(x, x, x)[0]

    model = Toy(Attends())
    model.net.attention.out_proj.weight.data[0] = math.nan
    event = only_event(model, list(torch.randn(3, 2, 5, 4)))
    assert (event.module, event.parameter) == ("net.attention.out_proj", "net.attention.out_proj.weight")


def test_a_tied_weight_that_became_infinite_after_a_step():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4), nn.ReLU()

        def forward(self, x):
            return self.outer(nn.functional.linear(x, self.inner.weight))

    class Spoils(Toy):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 1:
                self.net.inner.weight.data[0] = math.inf

    event = only_event(Spoils(Tied()), batches(*[8] * 4))
    assert (event.parameter, event.during, event.step) == ("net.inner.weight", "optimizer", 1)


@pytest.mark.compiles
@every_pass
def test_a_compiled_model_is_searched_uncompiled(during):
    model = Tells(net(FAULTS[during]))
    model.net = torch.compile(model.net, backend="eager")
    event = events_of(model, batches(*[8] * 4))[0]
    assert (event.module, event.during, event.step) == ("net.2", during, 2)


def test_what_the_step_writes_to_its_loggers_is_written_once(tmp_path):
    class Writes(Toy):
        def training_step(self, batch, batch_idx):
            self.logger.log_metrics({"own": float(batch_idx)}, step=batch_idx)
            return self.net(batch).mean() * (math.nan if batch_idx == 1 else 1)

    class Notes(CSVLogger):
        def log_metrics(self, metrics, step=None):
            calls.append(metrics)

    calls = []
    logger = Notes(tmp_path)
    model = Writes(mlp())
    assert only_event(model, batches(8, 8, 8), logger=logger).step == 1
    assert [metrics for metrics in calls if "own" in metrics] == [{"own": float(k)} for k in range(3)]
    assert model.trainer.loggers == [logger]
