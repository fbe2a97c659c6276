"""`watch`: callbacks in a loop without a Trainer see, log and say what they do in a Trainer."""

import contextlib
import functools
import threading

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from same_logs import assert_equal, everything, in_a_trainer, logged
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.tensorboard import SummaryWriter
from toys import ALWAYS, Toy, batches, fit, mlp, newer_torch

from hookboard import (
    ActivationLogger,
    Checkup,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    HookboardWarning,
    Intervention,
    KernelLogger,
    ParameterLogger,
    Scale,
    watch,
)
from hookboard.board.folders import open_folders

pytestmark = pytest.mark.filterwarnings("ignore:hookboard.*had nothing to measure")


class Plain(nn.Module):
    """Has the layers of a `Toy`, under the same names."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


def in_a_loop(folder, net, data, *callbacks, accumulate=1, scaler=None, autocast=None, log_every_n_steps=1):
    model = Plain(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    context = contextlib.nullcontext() if autocast is None else torch.autocast("cpu", autocast)
    with (
        SummaryWriter(folder) as writer,
        watch(model, optimizer, callbacks, writer, scaler=scaler, log_every_n_steps=log_every_n_steps) as run,
    ):
        for number, batch in enumerate(data, 1):
            is_last = number % accumulate == 0
            with run.step(batch, accumulates=not is_last):
                with context:
                    loss = model(batch).square().mean() / accumulate
                (loss if scaler is None else scaler.scale(loss)).backward()
                if is_last and scaler is None:
                    optimizer.step()
                elif is_last:
                    scaler.step(optimizer)
                    scaler.update()
                if is_last:
                    optimizer.zero_grad()
    return logged(folder)


def in_steps(folder, model, optimizers, data, step, *callbacks):
    """What is logged of a loop that does this with each batch."""
    with SummaryWriter(folder) as writer, watch(model, optimizers, callbacks, writer) as run:
        for batch in data:
            with run.step(batch):
                step(batch)
    return logged(folder)


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


def scaled(scale):
    def options():
        one, other = (torch.amp.GradScaler("cpu", init_scale=scale) for _ in range(2))
        plugin = MixedPrecision("16-mixed", "cpu", scaler=one)
        return {"plugins": plugin}, {"scaler": other, "autocast": torch.float16}

    return options


LIKE = {
    "plain": (batches(*[4] * 12), lambda: ({}, {})),
    "accumulating": (batches(*[4, 2] * 8), lambda: ({"accumulate_grad_batches": 2}, {"accumulate": 2})),
    "under autocast": (batches(*[4] * 6), lambda: ({"precision": "bf16-mixed"}, {"autocast": torch.bfloat16})),
    "under a GradScaler": (batches(*[4] * 6), scaled(2.0**8)),
    "under a GradScaler whose gradients overflow": (batches(*[4] * 6), scaled(2.0**127)),
}


@pytest.mark.parametrize("way", LIKE)
def test_what_is_logged_is_that_of_a_trainer_to_the_last_bit(tmp_path, way):
    data, options = LIKE[way]
    of_trainer, of_loop = options()
    theirs = in_a_trainer(tmp_path / "trainer", mlp(), data, *everything(), **of_trainer)
    assert_equal(in_a_loop(tmp_path / "loop", mlp(), data, *everything(), **of_loop), theirs)


def test_pictures_and_edits_are_those_of_a_trainer(tmp_path):
    def callbacks():
        return [
            Intervention(Scale(0.5), "net.0"),
            FeatureMapLogger("net.0", stage="train", every_n_steps=2),
            KernelLogger(every_n_steps=2),
            ActivationLogger("net.0", every_n_steps=1),
        ]

    data = [torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    theirs = in_a_trainer(tmp_path / "trainer", cnn(), data, *callbacks())
    assert_equal(in_a_loop(tmp_path / "loop", cnn(), data, *callbacks()), theirs)


def test_a_validation_is_that_of_a_trainer(tmp_path):
    def callbacks():
        return [
            ActivationLogger(stages=["train", "validate"], every_n_steps=1),
            HealthMonitor(every_n_steps=1),
            FeatureMapLogger("net.0", every_n_steps=1),
        ]

    data, model = batches(*[4] * 4), Plain(mlp())
    options = {"limit_val_batches": 1.0, "num_sanity_val_steps": 0}
    theirs = in_a_trainer(tmp_path / "trainer", mlp(), data, *callbacks(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (
        SummaryWriter(tmp_path / "loop") as writer,
        watch(model, optimizer, callbacks(), writer, validates=True) as run,
    ):
        for batch in data:
            with run.step(batch):
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with run.evaluate(), torch.no_grad():
            for batch in data:
                with run.step(batch):
                    model(batch)
    assert_equal(logged(tmp_path / "loop"), theirs)


class Recomputed(nn.Module):
    """Recomputes its first layers in the backward pass, which has a backward pass inside."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        x = checkpoint(self.net[:2], x.requires_grad_(), use_reentrant=True)
        return self.net[2](x)


def test_a_backward_pass_inside_another_is_none_of_its_own(tmp_path):
    def callbacks():
        return [HealthMonitor(every_n_steps=1, audit=False)]

    theirs = in_a_trainer(tmp_path / "trainer", Recomputed(), batches(*[4] * 4), *callbacks())
    assert_equal(in_a_loop(tmp_path / "loop", Recomputed(), batches(*[4] * 4), *callbacks()), theirs)


def test_the_cadence_of_callbacks_without_their_own_is_that_of_the_loop(tmp_path):
    mine = in_a_loop(tmp_path, mlp(), batches(*[4] * 6), ActivationLogger(), log_every_n_steps=3)
    assert {step for step, _ in mine} == {2, 5}


def test_what_is_trained_is_the_same_bit_for_bit_with_and_without(tmp_path):
    def trained(*callbacks):
        net = nn.Sequential(mlp(), nn.Dropout())
        torch.manual_seed(1)
        in_a_loop(tmp_path / str(len(callbacks)), net, batches(*[4] * 6), *callbacks)
        return [*net.parameters(), torch.get_rng_state()]

    assert all(map(torch.equal, trained(*everything()), trained()))


def step_of(run, model, optimizer, batch):
    with run.step(batch):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind_however_it_ends(tmp_path, error):
    model, backward = Plain(mlp()), torch.autograd.backward
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu")
    attributes = {name: {*vars(module)} for name, module in model.named_modules()}
    with (
        contextlib.suppress(RuntimeError, KeyboardInterrupt),
        SummaryWriter(tmp_path) as writer,
        watch(model, optimizer, everything(), writer, scaler=scaler) as run,
    ):
        step_of(run, model, optimizer, batches(4)[0])
        with run.step(batches(4)[0]):
            if error is not None:
                raise error
    assert torch.autograd.backward is backward
    assert "step" not in vars(scaler)
    assert not optimizer._optimizer_step_pre_hooks
    assert {name: {*vars(module)} for name, module in model.named_modules()} == attributes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_csv_logger_has_its_table_when_the_block_ends(tmp_path):
    model, logger = Plain(mlp()), CSVLogger(tmp_path, name=None, version="")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, ActivationLogger("net.0", every_n_steps=1), logger) as run:
        for batch in batches(4, 4):
            with run.step(batch):
                model(batch).square().mean().backward()
                optimizer.step()
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3


def test_a_logger_that_cannot_save_costs_a_warning(tmp_path, monkeypatch):
    model, logger = Plain(mlp()), CSVLogger(tmp_path)
    monkeypatch.setattr(logger, "save", lambda: 1 / 0)
    with (
        pytest.warns(HookboardWarning, match="saving what CSVLogger has logged.*ZeroDivisionError"),
        watch(model, torch.optim.SGD(model.parameters(), lr=0.01), ActivationLogger("net.0"), logger),
    ):
        pass


def test_a_loop_hears_that_a_rule_asks_it_to_stop():
    model, monitor = Plain(mlp()), HealthMonitor(rules=ALWAYS, window=1, every_n_steps=1, stop_on="always")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, [monitor]) as run:
        assert not run.should_stop
        step_of(run, model, optimizer, batches(4)[0])
        assert run.should_stop


def test_what_is_no_callback_of_hookboard_is_an_error_that_names_it():
    model = Plain(mlp())
    with pytest.raises(ValueError, match=r"callbacks=.*HealthMonitor'>\]: pass a hookboard callback"):
        watch(model, torch.optim.SGD(model.parameters(), lr=0.01), [HealthMonitor])


def test_in_a_loop_of_fabric_it_is_that_of_a_trainer(tmp_path):
    data, model = batches(*[4] * 6), Plain(mlp())
    theirs = in_a_trainer(tmp_path / "trainer", mlp(), data, *everything())
    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))

    def step(batch):
        fabric.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    assert_equal(in_steps(tmp_path / "loop", model, optimizer, data, step, *everything()), theirs)


class WithLBFGS(Toy):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


def test_of_an_optimizer_that_calls_a_closure_the_gradients_are_those_of_a_trainer(tmp_path):
    data, model = batches(*[4] * 4), Plain(mlp())
    fit(tmp_path / "trainer", WithLBFGS(mlp()), data, *everything())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def loss_of(batch):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    def step(batch):
        optimizer.step(functools.partial(loss_of, batch))

    mine = in_steps(tmp_path / "loop", model, optimizer, data, step, *everything())
    assert_equal(mine, logged(tmp_path / "trainer"))


class Gan(LightningModule):
    """Two networks, each with an optimizer. `losses` gives the loss of each in turn."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.critic, self.maker = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, width)) for width in (1, 4)]

    def losses(self, batch):
        yield self.critic(batch).square().mean() - self.critic(self.maker(batch).detach()).mean()
        yield self.critic(self.maker(batch)).mean()

    def training_step(self, batch):
        for optimizer, loss in zip(self.optimizers(), self.losses(batch), strict=True):
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def validation_step(self, batch):
        self.maker(batch)

    def configure_optimizers(self):
        return [torch.optim.SGD(net.parameters(), lr=0.01) for net in (self.critic, self.maker)]


def test_a_gan_with_two_optimizers_logs_what_it_does_in_a_trainer(tmp_path):
    data, model = batches(*[4] * 4), Gan()
    fit(tmp_path / "trainer", Gan(), data, *everything())
    optimizers = model.configure_optimizers()

    def step(batch):
        for optimizer, loss in zip(optimizers, model.losses(batch), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    mine = in_steps(tmp_path / "loop", model, optimizers, data, step, *everything())
    assert_equal(mine, logged(tmp_path / "trainer"))


def test_of_two_threads_each_hears_its_own_backward_passes_and_nothing_is_left(tmp_path):
    """The first to begin is the first to end."""
    before, loggers = torch.autograd.backward, [GradientLogger(every_n_steps=1, statistics="l2") for _ in range(2)]
    begun, ended = threading.Event(), threading.Event()
    models = [Plain(mlp()), Plain(mlp())]  # here, as the seed is that of all threads

    def trains(logger, model, is_first):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with watch(model, optimizer, [logger], CSVLogger(tmp_path, str(is_first))) as run:
            if not is_first:
                begun.wait(10)
            with run.step():
                begun.set() if is_first else ended.wait(10)
                model(batches(4)[0]).square().mean().backward()
        ended.set()

    threads = [threading.Thread(target=trains, args=(loggers[k], models[k], k == 0)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.autograd.backward is before
    first, second = ([reading.statistics for reading in logger.readings] for logger in loggers)
    assert first == second
    assert first


@pytest.mark.parametrize("every_n_steps", [1, 50])
def test_the_layer_of_the_first_nan_is_known(every_n_steps):
    model, monitor = Plain(mlp()), HealthMonitor(every_n_steps=every_n_steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, [monitor]) as run:
        step_of(run, model, optimizer, batches(4)[0])
        step_of(run, model, optimizer, torch.full((4, 4), torch.nan))
    verdict = monitor.verdicts[0]
    assert (verdict.rule, verdict.module, verdict.since) == ("nonfinite", "net.0", 1)


def test_nothing_is_tried_on_a_copy(caplog):
    model = Plain(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, [Checkup(), HealthMonitor(every_n_steps=1)]) as run:
        for _ in range(2):
            step_of(run, model, optimizer, batches(4)[0])
    said = [record.getMessage() for record in caplog.records]
    assert any("Checkup tries nothing: there is no Trainer" in line for line in said)


@newer_torch
@pytest.mark.compiles
def test_a_compiled_model_is_logged_as_a_trainer_logs_it(tmp_path):
    def compiled():
        net = mlp()
        net.compile(backend="aot_eager")
        return net

    data = batches(*[4] * 4)
    theirs = in_a_trainer(tmp_path / "trainer", compiled(), data, *everything())
    assert_equal(in_a_loop(tmp_path / "loop", compiled(), data, *everything()), theirs)


def test_a_step_that_raises_and_is_tried_again_is_measured_once(tmp_path):
    model, logger = Plain(mlp()), ActivationLogger(every_n_steps=1, statistics=["rms"], histogram=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    whole, half = batches(4)[0], batches(4)[0][:2]
    with SummaryWriter(tmp_path) as writer, watch(model, optimizer, [logger], writer) as run:
        with contextlib.suppress(RuntimeError), run.step(whole):
            model(whole)
            raise RuntimeError("out of memory")
        step_of(run, model, optimizer, half)
    exact = model.net[0](half).double()
    reading = next(one for one in logger.readings if one.site.name == "net.0")
    assert reading.moments.count == exact.numel()
    assert reading.statistics["rms"] == pytest.approx(exact.square().mean().sqrt().item(), rel=1e-6)
    assert reading.histogram.counts.sum() == exact.numel()


def test_an_update_is_that_of_the_step_not_of_one_before_it_that_raised(tmp_path):
    model, logger = Plain(mlp()), ParameterLogger(every_n_steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch, errors = batches(4)[0], [RuntimeError("out of memory")]

    def fail(*_):
        if errors:
            raise errors.pop()

    with SummaryWriter(tmp_path) as writer, watch(model, optimizer, [logger], writer) as run:
        optimizer.register_step_pre_hook(fail)
        with contextlib.suppress(RuntimeError):
            step_of(run, model, optimizer, batch)
        with torch.no_grad():
            model.net[0].weight.mul_(3)  # as where weights are loaded again
        before = model.net[0].weight.detach().double().clone()
        step_of(run, model, optimizer, batch)
    moved = (model.net[0].weight.detach().double() - before).norm().item()
    reading = next(
        one for one in logger.readings if (one.site.name, one.site.role) == ("net.0.weight", "parameter_update")
    )
    assert reading.statistics["update_norm"] == pytest.approx(moved, rel=1e-6)


def test_an_evaluation_that_raises_is_not_counted_to_the_next(tmp_path):
    model, logger = Plain(mlp()), ActivationLogger(stages=["validate"], statistics=["mean"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch = batches(4)[0]
    with SummaryWriter(tmp_path) as writer, watch(model, optimizer, [logger], writer, validates=True) as run:
        with contextlib.suppress(RuntimeError), run.evaluate(), run.step(batch):
            model(batch)
            raise RuntimeError("out of memory")
        with run.evaluate(), run.step(batch):
            model(batch)
    reading = next(one for one in logger.readings if one.site.name == "net.0")
    assert reading.moments.count == model.net[0](batch).numel()


def test_a_model_that_is_one_layer_is_measured(tmp_path):
    torch.manual_seed(0)
    net, logger = nn.Linear(4, 1), ActivationLogger(every_n_steps=1, statistics="mean")
    monitor, sgd = HealthMonitor(every_n_steps=1), torch.optim.SGD(net.parameters(), lr=0.01)
    with watch(net, sgd, [logger, monitor], SummaryWriter(tmp_path)) as run, run.step():
        output = net(torch.ones(2, 4))
        output.mean().backward()
        sgd.step()
    (reading,) = logger.readings
    assert reading.statistics["mean"] == pytest.approx(output.double().mean().item())
    assert {one.site.role for one in monitor.readings} >= {"output", "grad_output", "parameter_before"}


def test_tags_of_a_model_that_is_one_layer_call_it_model_and_belong_to_it_in_the_tab(tmp_path):
    net, writer = nn.Conv2d(1, 2, 3), SummaryWriter(tmp_path)
    logger = ActivationLogger(every_n_steps=1, statistics="mean", histogram=True)
    given = [logger, KernelLogger(every_n_steps=1), HealthMonitor()]
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    with watch(net, sgd, given, writer) as run, run.step():
        net(torch.ones(1, 1, 4, 4)).mean().backward()
        sgd.step()
    writer.close()
    board, (name,) = open_folders([tmp_path])
    page = board.layer(board.logged_run(name), "")
    assert {"kernels/model", "activations/model"} <= {one["tag"] for one in page["pictures"] + page["histograms"]}
    assert ("train/activation/mean", "model") in [(one["id"], one["row"]) for one in page["series"]]
    assert "model" not in board.logged_run(name).layers


def scaled_steps(net, scaler, *watches):
    """Trains three steps inside these contexts, the outermost first."""
    optimizer = watches[0][1]
    with contextlib.ExitStack() as until_end:
        runs = [until_end.enter_context(watch(net, optimizer, each, scaler=scaler)) for each, _ in watches]
        for batch in batches(4, 4, 4):
            with contextlib.ExitStack() as steps:
                for run in runs:
                    steps.enter_context(run.step(batch))
                scaler.scale(net(batch).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def parameters_of_both(net, optimizer, scaler):
    loggers = [GradientLogger(roles="parameter_grad", every_n_steps=1) for _ in range(2)]
    for each in loggers:
        each.needs_logger = False
    scaled_steps(net, scaler, *((each, optimizer) for each in loggers))
    return [[reading.site.name for reading in each.readings] for each in loggers]


def test_two_loops_that_share_a_scaler_both_hear_the_steps():
    net, scaler = mlp(), torch.amp.GradScaler("cpu")
    outer, inner = parameters_of_both(net, torch.optim.SGD(net.parameters(), 0.1), scaler)
    assert outer == inner != []


def test_the_users_own_step_of_a_scaler_is_called_and_stays():
    net, scaler, calls = mlp(), torch.amp.GradScaler("cpu"), []
    real = scaler.step
    own = scaler.step = lambda optimizer: [calls.append(optimizer), real(optimizer)]
    parameters_of_both(net, torch.optim.SGD(net.parameters(), 0.1), scaler)
    assert len(calls) == 3
    assert scaler.step is own


def test_a_backward_pass_of_several_scaled_losses_is_unscaled():
    net, logger = mlp(), GradientLogger("*", roles="grad_output", every_n_steps=1, statistics="abs_max")
    scaler, arrived = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    logger.needs_logger = False
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watch(net, optimizer, logger, scaler=scaler) as run, run.step():
        output = net(batches(4)[0])
        output.register_hook(arrived.append)
        torch.autograd.backward([scaler.scale(output.square().mean()), scaler.scale(output.abs().mean())])
        scaler.step(optimizer)
        scaler.update()
    *_, last = logger.readings
    assert last.statistics["abs_max"] == pytest.approx(arrived[0].abs().max().item() / 1024.0)
