"""However a fit ends, nothing of ours stays behind."""

import copy
import functools
import gc
import weakref

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from toys import Toy, batches, compiler_stance, fit, hooked, loader, mlp, scalars, trainer

from hookboard import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    Intervention,
    ParameterLogger,
    Scale,
    capture,
)

# Nothing here is a picture that has a class-activation map, and two callbacks show feature maps of one layer.
pytestmark = pytest.mark.filterwarnings("ignore::hookboard.HookboardWarning")


def every_callback():
    every = {"every_n_steps": 1}
    return [
        ActivationLogger(roles=["output", "input"], **every),
        GradientLogger("net.2", roles=["grad_output", "grad_input", "parameter_grad"], **every),
        ParameterLogger(**every),
        FeatureMapLogger(stage="train", **every),
        FeatureMapLogger("net.0", **every),
        CAMLogger("net.1", **every),
        HealthMonitor(**every),
        Intervention(Scale(2.0), "net.0"),
    ]


class Alive:
    """Weak references to every activation that the network made."""

    def __init__(self, net):
        self.references = []
        for module in net:
            module.register_forward_hook(lambda m, a, output: self.references.append(weakref.ref(output)))

    def count(self):
        gc.collect()
        return sum(reference() is not None for reference in self.references)


def failing(one, methods, error):
    """A module or a callback that raises at the end of these methods."""

    def after(method):
        @functools.wraps(method)  # Lightning looks at the arguments it takes
        def fail(*args, **kwargs):
            method(*args, **kwargs)
            raise error

        return fail

    for name in methods:
        setattr(one, name, after(getattr(one, name)))
    return one


def assert_nothing_stays(model, callbacks, alive, own_hooks):
    assert hooked(model) == own_hooks
    assert all(not callback._live for callback in callbacks)
    assert alive.count() == 0


def test_after_a_fit(tmp_path):
    net, callbacks = mlp(), every_callback()
    alive, model = Alive(net), Toy(net)
    own = hooked(model)
    fit(tmp_path, model, batches(4, 4, 4), *callbacks)
    assert len(alive.references) == 9
    assert_nothing_stays(model, callbacks, alive, own)


@pytest.mark.parametrize("error", [RuntimeError("on purpose"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("where", ["training_step", "validation_step", "configure_optimizers", "on_train_start"])
def test_after_a_failure_of_the_module(tmp_path, where, error):
    net, callbacks = mlp(), every_callback()
    alive, model = Alive(net), failing(Toy(net), [where], error)
    own = hooked(model)
    with pytest.raises((RuntimeError, SystemExit)):
        fit(tmp_path, model, batches(4, 4), *callbacks, limit_val_batches=1, num_sanity_val_steps=0)
    error.__traceback__ = None
    assert_nothing_stays(model, callbacks, alive, own)


@pytest.mark.parametrize("position", ["before", "behind"])
@pytest.mark.parametrize(
    "hook", ["on_fit_start", "on_train_batch_start", "on_after_backward", "on_train_batch_end", "on_train_end"]
)
def test_after_a_failure_of_another_callback(tmp_path, hook, position):
    net, callbacks, error = mlp(), every_callback(), RuntimeError("on purpose")
    alive, model, other = Alive(net), Toy(net), failing(Callback(), [hook], error)
    own = hooked(model)
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(tmp_path, model, batches(4, 4), *([other, *callbacks] if position == "before" else [*callbacks, other]))
    error.__traceback__ = None
    assert_nothing_stays(model, callbacks, alive, own)


@pytest.mark.parametrize("position", ["before", "behind"])
@pytest.mark.parametrize("hooks", [["on_train_batch_end", "on_exception"], ["teardown"]])
def test_after_another_callback_that_fails_while_the_run_ends(tmp_path, hooks, position):
    callbacks, model = every_callback(), Toy(mlp())
    other = failing(Callback(), hooks, RuntimeError("on purpose"))
    run = trainer(tmp_path, *([other, *callbacks] if position == "before" else [*callbacks, other]))
    own, before = hooked(model), list(run.callbacks)
    with pytest.raises(RuntimeError, match="on purpose"):
        run.fit(model, loader(batches(4, 4)), loader(batches(4)))
    assert hooked(model) == own
    assert all(not callback._live for callback in callbacks)
    assert compiler_stance() == "default"
    assert run.callbacks == before


def test_after_a_configuration_that_fits_no_module(tmp_path):
    model = Toy(mlp())
    with pytest.raises(ValueError, match=r"net\.9"):
        fit(tmp_path, model, batches(4), ActivationLogger(every_n_steps=1), ActivationLogger("net.9"))
    assert hooked(model) == []


def test_what_was_logged_before_a_failure_is_kept(tmp_path):
    class FailsThird(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 2:
                raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        fit(tmp_path, Toy(mlp()), batches(4, 4, 4, 4), ActivationLogger(every_n_steps=1), FailsThird())
    assert list(scalars(tmp_path)["activation_std/net.0"]) == [0, 1, 2]


def test_nothing_of_ours_is_called_by_the_garbage_collector(tmp_path):
    """What it calls runs where Python drops a KeyboardInterrupt, which may have come while it collected."""

    def ours():
        return [each for each in gc.get_objects() if str(type(each).__module__).startswith("hookboard")]

    before = {id(each): each for each in ours()}  # what tests have left that ran earlier
    logger = CSVLogger(tmp_path)
    callbacks = [ActivationLogger(histogram=True), GradientLogger(), HealthMonitor()]
    fit(None, Toy(mlp()), batches(4, 4), *callbacks, logger=logger)
    net = mlp()
    with capture(net) as seen:
        net(batches(4)[0])
    new = [each for each in ours() if id(each) not in before and not isinstance(each, type)]
    assert any(each is seen for each in new)
    references = [reference for each in [logger, *new] for reference in weakref.getweakrefs(each)]
    assert [reference for reference in references if reference.__callback__ is not None] == []


def test_a_second_fit_with_the_same_callback_logs_again(tmp_path):
    callback = ActivationLogger(every_n_steps=1)
    for folder in ("first", "second"):
        fit(tmp_path / folder, Toy(mlp()), batches(4, 4), callback)
        assert list(scalars(tmp_path / folder)["activation_std/net.0"]) == [0, 1]


def test_two_callbacks_of_one_class_do_not_meet(tmp_path):
    first = ActivationLogger("net.0", every_n_steps=1, statistics="max")
    second = ActivationLogger("net.2", every_n_steps=2, statistics="min")
    fit(tmp_path, Toy(mlp()), batches(4, 4, 4, 4), first, second)
    found = {tag: list(points) for tag, points in scalars(tmp_path).items() if "/net" in tag}
    assert found == {"activation_max/net.0": [0, 1, 2, 3], "activation_min/net.2": [1, 3]}


def test_a_model_copied_while_it_is_watched_is_not_watched(tmp_path):
    callback = ActivationLogger("net.0", every_n_steps=1)

    class RunsACopy(Callback):
        def on_before_backward(self, trainer, pl_module, loss):
            copy.deepcopy(pl_module.net)(torch.randn(100, 4))

    fit(tmp_path, Toy(mlp()), batches(4), callback, RunsACopy())
    assert callback.readings[0].moments.count == 4 * 8
