"""What a user gives to a Trainer, and batches, are called and read no more often with our callbacks."""

from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch
from callbacks.user_program import (
    IGNORED,
    STEPS,
    Does,
    Effects,
    Forgets,
    InTrainer,
    assert_the_same_is_seen,
    counting,
    noting_warnings,
)
from lightning.pytorch import Callback
from torch import nn
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.filterwarnings(*IGNORED)

effect = Effects()


@effect
def a_callback_of_the_user_counts(user):
    def noting(name):
        def called(trainer, module, *args, **kwargs):
            user.saw(name, trainer.global_step, trainer.current_epoch, sorted(trainer.callback_metrics))

        return called

    counts = Callback()
    for name in dir(Callback):
        if name.startswith("on_") and "checkpoint" not in name and "exception" not in name:
            setattr(counts, name, noting(name))
    user.callbacks = [counts]


CALLED = """
optimizer_step optimizer_zero_grad backward configure_gradient_clipping on_before_zero_grad on_before_backward
on_after_backward on_before_optimizer_step on_train_batch_start log transfer_batch_to_device on_before_batch_transfer
on_after_batch_transfer configure_optimizers configure_callbacks configure_model setup teardown on_fit_start
train_dataloader toggle_optimizer state_dict parameters named_parameters on_save_checkpoint all_gather print
"""


@effect
def the_module_counts_what_the_trainer_calls(user):
    user.module = counting(InTrainer, user, *CALLED.split())


@effect
def a_logger_of_the_user_counts(user):
    class Counts(Forgets):
        def log_metrics(self, metrics, step=None):
            if of_user := {name: value for name, value in metrics.items() if name in ("epoch", "mean")}:
                user.saw(step, of_user)

        def save(self):
            user.saw("save")

        def finalize(self, status):
            user.saw("finalize", status)

        def log_graph(self, *args, **kwargs):
            user.saw("graph")

        def after_save_checkpoint(self, *args):
            user.saw("checkpoint")

    user.loggers = [Counts()]
    user.during = lambda output: user.in_trainer.log("mean", output.mean(), batch_size=8)


@effect
def a_profiler_and_a_plugin_of_lightning_count(user):
    from lightning.pytorch.plugins import Precision
    from lightning.pytorch.profilers import Profiler

    class Counts(Profiler):
        def start(self, name):
            if "[Callback]" not in name:
                user.saw("start", name)

        def stop(self, name):
            if "[Callback]" not in name:
                user.saw("stop", name)

    names = ("optimizer_step", "backward", "pre_backward", "convert_input", "convert_output", "clip_gradients")
    precision = counting(Precision, user, *[n for n in names if hasattr(Precision, n)])()
    user.options = {"profiler": Counts(), "plugins": precision}


@effect
def the_trainer_is_asked_how_far_it_is(user):
    def during(output):
        its = user.in_trainer.trainer
        user.saw(its.global_step, its.current_epoch, its.num_training_batches, its.is_last_batch, its.state.stage)
        user.saw(sorted(its.callback_metrics), sorted(its.logged_metrics), sorted(its.progress_bar_metrics))
        user.saw(its.should_stop, its.sanity_checking, its.training, user.in_trainer.training)

    user.during = lambda output: during(output) and None


@effect
def warnings_of_lightning_come_once(user):
    user.around_fit = lambda: noting_warnings(user, "default")
    user.during = lambda output: user.in_trainer.log("mean", output.mean())

    class Scheduled(InTrainer):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    user.module = Scheduled


@effect
def a_dataset_and_a_sampler_count(user):
    class Counts(torch.utils.data.Dataset):
        def __len__(self):
            user.saw("len")
            return STEPS

        def __getitem__(self, index):
            user.saw("item", index)
            return data[index]

    data = user.data
    user.data = Counts()
    user.sampler = counting(torch.utils.data.SequentialSampler, user, "__iter__")(data)


@effect
def a_step_returns_more_than_the_loss(user):
    kind = counting(dict, user, "__getitem__", "__iter__", "get", "items", "keys", "values", "pop")

    class Returns(InTrainer):
        def training_step(self, batch):
            loss = user.loss(batch)
            return kind(loss=loss, more=loss.detach())

    user.module = Returns


@effect
def a_closure_of_the_trainer_is_called_several_times(user):
    kind = counting(torch.optim.LBFGS, user, "step", "zero_grad")
    user.optimizer = lambda parameters: kind(parameters, max_iter=3)
    user.net[0].register_forward_hook(lambda *args: user.saw("forward") and None)


@effect
def a_batch_makes_what_it_has_not(user):
    user.data = [defaultdict(lambda: user.saw("made") or 0, x=batch) for batch in user.data]
    user.given = lambda batch: batch["x"] + batch["missing"]


@effect
def a_batch_is_a_sequence(user):
    class Items(Sequence):
        def __init__(self, *items):
            self.items = items

        def __getitem__(self, index):
            user.saw("item", index)
            return self.items[index]

        def __len__(self):
            user.saw("len")
            return len(self.items)

    user.data = [Items(batch, batch[:, :1]) for batch in user.data]
    user.given = lambda batch: batch[0]


@effect
def a_batch_loads_at_first_use(user):
    class Loads:
        def __init__(self, x):
            self.path = x

        def __getattr__(self, name):
            user.saw("asked for", name)
            if name != "x":
                raise AttributeError(name)
            self.x = self.path
            return self.x

        def to(self, device):
            return self

        def __iter__(self):
            return iter([self.x])

        def __len__(self):
            return 8

    user.data = list(map(counting(Loads, user, "to", "__iter__", "__len__"), user.data))
    user.given = lambda batch: batch.x


@effect
def a_batch_has_an_iterator(user):
    user.data = [{"x": batch, "numbers": iter(range(3)), "all": (n for n in range(3))} for batch in user.data]
    user.given = lambda batch: batch["x"] + next(batch["numbers"]) + next(batch["all"])


@effect
def a_batch_has_a_class_that_pytree_knows(user):
    if not hasattr(pytree, "_deregister_pytree_node"):
        pytest.skip("torch 2.6 has no way to take a class back from pytree")

    class Node:
        def __init__(self, x):
            self.x = x

    def flatten(node):
        user.saw("flatten")
        return [node.x], None

    if Node in pytree.SUPPORTED_NODES:
        pytree._deregister_pytree_node(Node)
    pytree.register_pytree_node(Node, flatten, lambda items, context: user.saw("unflatten") or Node(*items))
    user.data = list(map(Node, user.data))
    user.net.insert(0, Does(lambda node: node.x))
    user.at_end.append(lambda: pytree._deregister_pytree_node(Node))


@effect
def a_layer_takes_an_object_with_a_text(user):
    class Options:
        scale = 2.0

        def __getattr__(self, name):
            user.saw("asked for", name)
            raise AttributeError(name)

        def __iter__(self):
            return iter(())

    options = counting(Options, user, "__repr__", "__eq__", "__hash__", "__iter__")()

    class Scales(nn.Module):
        def forward(self, x, options):
            return x * options.scale

    user.net.scales = Scales()
    user.net.forward = lambda x: user.net.scales(nn.Sequential.forward(user.net[:5], x), options=options)


@pytest.mark.parametrize(("make", "way"), effect.cases("in a Trainer"))
def test_user_code_sees_the_same_with_callbacks(make, way):
    assert_the_same_is_seen(make, way)
