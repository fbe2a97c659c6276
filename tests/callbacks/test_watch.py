"""`watch`: callbacks in a loop without a Trainer see, log and say what they do in a Trainer."""

import contextlib
import copy
import functools
import threading

import pytest
import torch
from callbacks.test_step_axis import Manual
from lightning.fabric import Fabric
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


def sgd(model, rate=0.01):
    return torch.optim.SGD(model.parameters(), lr=rate)


@contextlib.contextmanager
def watched(folder, model, *callbacks, optimizer=None, **options):
    """The run of a loop, and a function that takes a plain step on a batch."""
    optimizer = optimizer or sgd(model)

    def step(batch):
        with run.step(batch):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    with SummaryWriter(folder) as writer, watch(model, optimizer, callbacks, writer, **options) as run:
        yield run, step


def in_a_loop(folder, net, data, *callbacks, accumulate=1, scaler=None, autocast=None, **options):
    model = Plain(net)
    optimizer = sgd(model)
    context = contextlib.nullcontext() if autocast is None else torch.autocast("cpu", autocast)
    with watched(folder, model, *callbacks, optimizer=optimizer, scaler=scaler, **options) as (run, _):
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


def in_steps(folder, model, optimizers, data, step):
    """What all callbacks log of a loop that does this with each batch."""
    with watched(folder, model, *everything(), optimizer=optimizers) as (run, _):
        for batch in data:
            with run.step(batch):
                step(batch)
    return logged(folder)


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
    def cnn():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    def callbacks():
        return [
            Intervention(Scale(0.5), "net.0"),
            FeatureMapLogger("net.0", stage="train", every_n_steps=2),
            KernelLogger(every_n_steps=2),
            ActivationLogger("net.0", every_n_steps=1),
        ]

    data = list(torch.randn(4, 2, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
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
    with watched(tmp_path / "loop", model, *callbacks(), validates=True) as (run, step):
        for batch in data:
            step(batch)
        model.eval()
        with run.evaluate(), torch.no_grad():
            for batch in data:
                with run.step(batch):
                    model(batch)
    assert_equal(logged(tmp_path / "loop"), theirs)


def test_a_backward_pass_inside_another_is_none_of_its_own(tmp_path):
    class Recomputed(nn.Module):
        """Recomputes its first layers in the backward pass, which has a backward pass inside."""

        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return self.net[2](checkpoint(self.net[:2], x.requires_grad_(), use_reentrant=True))

    monitors = [HealthMonitor(every_n_steps=1, audit=False) for _ in range(2)]
    theirs = in_a_trainer(tmp_path / "trainer", Recomputed(), batches(*[4] * 4), monitors[0])
    assert_equal(in_a_loop(tmp_path / "loop", Recomputed(), batches(*[4] * 4), monitors[1]), theirs)


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


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind_however_it_ends(tmp_path, error):
    model, backward, scaler = Plain(mlp()), torch.autograd.backward, torch.amp.GradScaler("cpu")
    optimizer = sgd(model)
    attributes = {name: {*vars(module)} for name, module in model.named_modules()}
    with (
        contextlib.suppress(RuntimeError, KeyboardInterrupt),
        watched(tmp_path, model, *everything(), optimizer=optimizer, scaler=scaler) as (run, step),
    ):
        step(batches(4)[0])
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
    with watch(model, sgd(model), ActivationLogger("net.0", every_n_steps=1), logger) as run:
        for batch in batches(4, 4):
            with run.step(batch):
                model(batch)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3


def test_a_logger_that_cannot_save_costs_a_warning(tmp_path, monkeypatch):
    model, logger = Plain(mlp()), CSVLogger(tmp_path)
    monkeypatch.setattr(logger, "save", lambda: 1 / 0)
    with (
        pytest.warns(HookboardWarning, match="saving what CSVLogger has logged.*ZeroDivisionError"),
        watch(model, sgd(model), ActivationLogger("net.0"), logger),
    ):
        pass


def test_a_loop_hears_that_a_rule_asks_it_to_stop(tmp_path):
    monitor = HealthMonitor(rules=ALWAYS, window=1, every_n_steps=1, stop_on="always")
    with watched(tmp_path, Plain(mlp()), monitor) as (run, step):
        assert not run.should_stop
        step(batches(4)[0])
        assert run.should_stop


def test_what_is_no_callback_of_hookboard_is_an_error_that_names_it():
    model = Plain(mlp())
    with pytest.raises(ValueError, match=r"callbacks=.*HealthMonitor'>\]: pass a hookboard callback"):
        watch(model, sgd(model), [HealthMonitor])


def test_in_a_loop_of_fabric_it_is_that_of_a_trainer(tmp_path):
    data, model = batches(*[4] * 6), Plain(mlp())
    theirs = in_a_trainer(tmp_path / "trainer", mlp(), data, *everything())
    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(model, sgd(model))

    def step(batch):
        fabric.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    assert_equal(in_steps(tmp_path / "loop", model, optimizer, data, step), theirs)


def test_of_an_optimizer_that_calls_a_closure_the_gradients_are_those_of_a_trainer(tmp_path):
    def lbfgs(model):
        return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    data, model, other = batches(*[4] * 4), Plain(mlp()), Toy(mlp())
    other.configure_optimizers = lambda: lbfgs(other)
    fit(tmp_path / "trainer", other, data, *everything())
    optimizer = lbfgs(model)

    def loss_of(batch):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    mine = in_steps(
        tmp_path / "loop", model, optimizer, data, lambda batch: optimizer.step(functools.partial(loss_of, batch))
    )
    assert_equal(mine, logged(tmp_path / "trainer"))


def test_a_loop_with_two_optimizers_logs_what_it_does_in_a_trainer(tmp_path):
    data, model = batches(*[4] * 4), Plain(mlp())
    fit(tmp_path / "trainer", Manual(mlp(), optimizers=2), data, *everything())
    optimizers = [sgd(model.net[0]), sgd(model.net[2])]

    def step(batch):
        for optimizer in optimizers:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    mine = in_steps(tmp_path / "loop", model, optimizers, data, step)
    assert_equal(mine, logged(tmp_path / "trainer"))


def test_of_two_threads_each_hears_its_own_backward_passes_and_nothing_is_left(tmp_path):
    """The first to begin is the first to end."""
    before, loggers = torch.autograd.backward, [GradientLogger(every_n_steps=1, statistics="l2") for _ in range(2)]
    begun, ended = threading.Event(), threading.Event()
    models = [Plain(mlp()), Plain(mlp())]  # here, as the seed is that of all threads

    def trains(logger, model, is_first):
        with watch(model, sgd(model), [logger], CSVLogger(tmp_path, str(is_first))) as run:
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
def test_the_layer_of_the_first_nan_is_known(tmp_path, every_n_steps):
    monitor = HealthMonitor(every_n_steps=every_n_steps)
    with watched(tmp_path, Plain(mlp()), monitor) as (_, step):
        step(batches(4)[0])
        step(torch.full((4, 4), torch.nan))
    verdict = monitor.verdicts[0]
    assert (verdict.rule, verdict.module, verdict.since) == ("nonfinite", "net.0", 1)


def test_nothing_is_tried_on_a_copy(tmp_path, caplog):
    with watched(tmp_path, Plain(mlp()), Checkup(), HealthMonitor(every_n_steps=1)) as (_, step):
        step(batches(4)[0])
        step(batches(4)[0])
    assert "Checkup tries nothing: there is no Trainer" in caplog.text


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
    whole, half = batches(4)[0], batches(4)[0][:2]
    with watched(tmp_path, model, logger, optimizer=sgd(model, rate=0.0)) as (run, step):
        with contextlib.suppress(RuntimeError), run.step(whole):
            model(whole)
            raise RuntimeError("out of memory")
        step(half)
    exact = model.net[0](half).double()
    reading = next(one for one in logger.readings if one.site.name == "net.0")
    assert reading.moments.count == exact.numel()
    assert reading.statistics["rms"] == pytest.approx(exact.square().mean().sqrt().item(), rel=1e-6)
    assert reading.histogram.counts.sum() == exact.numel()


def test_an_update_is_that_of_the_step_not_of_one_before_it_that_raised(tmp_path):
    model, logger = Plain(mlp()), ParameterLogger(every_n_steps=1)
    optimizer, batch, errors = sgd(model, rate=0.1), batches(4)[0], [RuntimeError("out of memory")]

    def fail(*_):
        if errors:
            raise errors.pop()

    with watched(tmp_path, model, logger, optimizer=optimizer) as (_, step):
        optimizer.register_step_pre_hook(fail)
        with contextlib.suppress(RuntimeError):
            step(batch)
        with torch.no_grad():
            model.net[0].weight.mul_(3)  # as where weights are loaded again
        before = model.net[0].weight.detach().double().clone()
        step(batch)
    moved = (model.net[0].weight.detach().double() - before).norm().item()
    reading = next(
        one for one in logger.readings if (one.site.name, one.site.role) == ("net.0.weight", "parameter_update")
    )
    assert reading.statistics["update_norm"] == pytest.approx(moved, rel=1e-6)


def test_an_evaluation_that_raises_is_not_counted_to_the_next(tmp_path):
    model, logger = Plain(mlp()), ActivationLogger(stages=["validate"], statistics=["mean"])
    batch = batches(4)[0]
    with watched(tmp_path, model, logger, validates=True) as (run, _):
        with contextlib.suppress(RuntimeError), run.evaluate(), run.step(batch):
            model(batch)
            raise RuntimeError("out of memory")
        with run.evaluate(), run.step(batch):
            model(batch)
    reading = next(one for one in logger.readings if one.site.name == "net.0")
    assert reading.moments.count == model.net[0](batch).numel()


def test_a_model_that_is_one_layer_is_measured_and_called_model_in_tags_and_belongs_to_it_in_the_tab(tmp_path):
    net, monitor = nn.Conv2d(1, 2, 3), HealthMonitor(every_n_steps=1)
    logger = ActivationLogger(every_n_steps=1, statistics="mean", histogram=True)
    with watched(tmp_path, net, logger, KernelLogger(every_n_steps=1), monitor) as (run, _), run.step():
        output = net(torch.ones(1, 1, 4, 4))
        output.mean().backward()
    (reading,) = logger.readings
    assert reading.statistics["mean"] == pytest.approx(output.double().mean().item())
    assert {one.site.role for one in monitor.readings} >= {"output", "grad_output"}
    board, (name,) = open_folders([tmp_path])
    page = board.layer(board.logged_run(name), "")
    assert {"kernels/model", "activations/model"} <= {one["tag"] for one in page["pictures"] + page["histograms"]}
    assert ("train/activation/mean", "model") in [(one["id"], one["row"]) for one in page["series"]]
    assert "model" not in board.logged_run(name).layers


def test_two_loops_that_share_a_scaler_both_hear_the_steps_and_the_users_own_step_is_called_and_stays(tmp_path):
    model, scaler, calls = Plain(mlp()), torch.amp.GradScaler("cpu"), []
    real = scaler.step
    own = scaler.step = lambda optimizer: [calls.append(optimizer), real(optimizer)]
    outer, inner = (GradientLogger(roles="parameter_grad", every_n_steps=1) for _ in range(2))
    given = {"optimizer": sgd(model), "scaler": scaler}
    with (
        watched(tmp_path / "outer", model, outer, **given) as (run, _),
        watched(tmp_path / "inner", model, inner, **given) as (other, _),
    ):
        for batch in batches(4, 4, 4):
            with run.step(batch), other.step(batch):
                scaler.scale(model(batch).square().mean()).backward()
                scaler.step(given["optimizer"])
                scaler.update()
    names = [[reading.site.name for reading in each.readings] for each in (outer, inner)]
    assert names[0] == names[1] != []
    assert len(calls) == 3
    assert scaler.step is own


def test_a_backward_pass_of_several_scaled_losses_is_unscaled(tmp_path):
    net, logger = mlp(), GradientLogger("*", roles="grad_output", every_n_steps=1, statistics="abs_max")
    scaler, arrived = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    optimizer = sgd(net)
    with watched(tmp_path, net, logger, optimizer=optimizer, scaler=scaler) as (run, _), run.step():
        output = net(batches(4)[0])
        output.register_hook(arrived.append)
        torch.autograd.backward([scaler.scale(output.square().mean()), scaler.scale(output.abs().mean())])
        scaler.step(optimizer)
        scaler.update()
    *_, last = logger.readings
    assert last.statistics["abs_max"] == pytest.approx(arrived[0].abs().max().item() / 1024.0)


class CopiesItsHooks(torch.optim.SGD):
    """An optimizer whose copies keep what torch leaves out of them."""

    def __getstate__(self):
        return vars(self)


def test_a_copy_of_an_optimizer_with_its_hooks_copies_nothing_of_the_loop(tmp_path):
    model = Plain(mlp())
    optimizer = CopiesItsHooks(model.parameters(), lr=0.01)
    with watched(tmp_path, model, ActivationLogger(), optimizer=optimizer):
        copied = copy.deepcopy(optimizer)
    assert [*copied._optimizer_step_pre_hooks.values()] != []
