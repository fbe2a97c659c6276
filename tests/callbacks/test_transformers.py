"""`for_transformers`: callbacks in Hugging Face's Trainer log and say what they do in a Lightning Trainer."""

import copy
import pickle

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from same_logs import assert_equal, everything, in_a_trainer, logged
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from toys import ALWAYS, batches, mlp

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, HookboardWarning, for_transformers

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore:hookboard.*had nothing to measure")


class Model(nn.Module):
    """Has the layers of a `Toy`, under the same names, and returns its loss as models of transformers do."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return {"loss": self.net(x).square().mean()}


def trainer(folder, model, data, *callbacks, **options):
    """Hugging Face's Trainer, which takes the rows of the batches in order."""
    quiet = {"logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    plain = {"max_grad_norm": 0.0, "learning_rate": 0.01, "optim": "sgd", "lr_scheduler_type": "constant"}
    once = {"num_train_epochs": 1, "per_device_train_batch_size": len(data[0]), "train_sampling_strategy": "sequential"}
    given = transformers.TrainingArguments(output_dir=str(folder), **quiet | plain | once | options)
    rows = [{"x": row} for batch in data for row in batch]
    return transformers.Trainer(model, given, train_dataset=rows, eval_dataset=rows, callbacks=[*callbacks])


def in_transformers(folder, net, data, *callbacks, others=(), **options):
    trainer(folder, Model(net), data, for_transformers([*callbacks]), *others, **options).train()
    return logged(folder / "hookboard")


class At(transformers.TrainerCallback):
    """Does something at one point of the training, once."""

    def __init__(self, point, what):
        def once(args, state, control, **others):
            if not self.is_done:
                self.is_done = True
                what(control)

        self.is_done = False
        setattr(self, point, once)


def hooks_of(model):
    """How many hooks are on the modules, and what `backward` is."""
    count = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return count, torch.autograd.backward


@pytest.mark.parametrize(
    ("of_lightning", "of_transformers"),
    [
        ({}, {}),
        ({"accumulate_grad_batches": 2}, {"gradient_accumulation_steps": 2}),
        ({"precision": "bf16-mixed"}, {"bf16": True}),
    ],
    ids=["plain", "accumulating", "bfloat16"],
)
def test_what_is_logged_is_that_of_a_lightning_trainer_to_the_last_bit(tmp_path, of_lightning, of_transformers):
    data = batches(*[4] * 8)
    theirs = in_a_trainer(tmp_path / "lightning", mlp(), data, *everything(), **of_lightning)
    mine = in_transformers(tmp_path / "transformers", mlp(), data, *everything(), **of_transformers)
    assert_equal(mine, theirs)


@pytest.mark.compiles
def test_a_compiled_model_is_logged_under_the_names_of_its_modules(tmp_path):
    data = batches(*[4] * 4)
    eager = in_transformers(tmp_path / "eager", mlp(), data, *everything())
    options = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    compiled = in_transformers(tmp_path / "compiled", mlp(), data, *everything(), **options)
    left_out = {tag.partition("/")[0] for _, tag in eager.keys() - compiled.keys()}
    assert compiled.keys() <= eager.keys()
    assert all(name.startswith("input_gradient") for name in left_out)  # which the compiler does not keep


def test_data_without_a_length_is_logged_as_data_with_one(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([{"x": row} for batch in data for row in batch])

    data = batches(*[4] * 4)
    expected = in_transformers(tmp_path / "rows", mlp(), data, *everything(), max_steps=4)
    streaming = trainer(tmp_path / "stream", Model(mlp()), data, for_transformers(everything()), max_steps=4)
    streaming.train_dataset = Stream()
    streaming.train()
    assert_equal(logged(tmp_path / "stream" / "hookboard"), expected)


def test_steps_go_on_after_a_resume(tmp_path):
    data, logger = batches(*[4] * 8), ActivationLogger("net.0", every_n_steps=1)
    first = trainer(tmp_path, Model(mlp()), data, max_steps=4, save_strategy="steps", save_steps=4)
    first.train()
    writer = SummaryWriter(tmp_path / "resumed")
    resumed = trainer(tmp_path, Model(mlp()), data, for_transformers(logger, writer), max_steps=6)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    writer.close()
    assert sorted({step for step, _ in logged(tmp_path / "resumed")}) == [4, 5]


def test_training_is_the_same_without_it_to_the_last_bit_and_no_hook_is_left(tmp_path):
    def trained(*callbacks):
        model = Model(nn.Sequential(mlp(), nn.Dropout()))
        trainer(tmp_path / str(len(callbacks)), model, batches(*[4] * 8), *callbacks, max_grad_norm=1e-3).train()
        return model

    bare, watched = trained(), trained(for_transformers(everything()))
    assert all(map(torch.equal, watched.parameters(), bare.parameters()))
    assert hooks_of(watched) == hooks_of(bare)


def both_stages():
    return [ActivationLogger(stages=["train", "validate"], every_n_steps=1), HealthMonitor(every_n_steps=1)]


EVALUATES = {"per_device_eval_batch_size": 4, "num_train_epochs": 2}


@pytest.mark.parametrize("given", [{"eval_strategy": "epoch"}, {"eval_strategy": "steps", "eval_steps": 6}], ids=str)
def test_an_evaluation_is_logged_as_a_validation_of_a_trainer(tmp_path, given):
    data = batches(*[4] * 6)
    options = {"limit_val_batches": 1.0, "num_sanity_val_steps": 0, "max_epochs": 2}
    theirs = in_a_trainer(tmp_path / "lightning", mlp(), data, *both_stages(), **options)
    mine = in_transformers(tmp_path / "transformers", mlp(), data, *both_stages(), **EVALUATES, **given)
    assert [key for key in mine if key[1].startswith("validate_")]
    assert_equal(mine, theirs)


def test_an_evaluation_that_was_called_off_or_by_hand_is_not_logged(tmp_path):
    class Never(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            control.should_evaluate = False

    data = batches(*[4] * 4)
    without = in_transformers(tmp_path / "none", mlp(), data, *both_stages())
    options = {"others": [Never()], "eval_strategy": "steps", "eval_steps": 1}
    assert_equal(in_transformers(tmp_path / "called_off", mlp(), data, *both_stages(), **options), without)
    run = trainer(tmp_path / "by_hand", Model(mlp()), data, for_transformers(both_stages()), eval_on_start=True)
    run.add_callback(At("on_step_end", lambda control: run.evaluate()))
    run.train()
    run.evaluate()
    assert_equal(logged(tmp_path / "by_hand" / "hookboard"), without)


def test_of_several_sets_to_evaluate_on_the_first_is_logged(tmp_path):
    data, options = batches(*[4] * 4), {"eval_strategy": "epoch", **EVALUATES}
    run = trainer(tmp_path / "two", Model(mlp()), data, for_transformers(both_stages()), **options)
    run.eval_dataset = {"first": run.eval_dataset, "second": run.eval_dataset[:4]}
    run.train()
    expected = in_transformers(tmp_path / "one", mlp(), data, *both_stages(), **options)
    assert_equal(logged(tmp_path / "two" / "hookboard"), expected)


def test_checkpointing_leaves_the_gradients_of_gpt2(tmp_path):
    def norms(**options):
        torch.manual_seed(0)
        config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2)
        model, logger = transformers.GPT2LMHeadModel(config), GradientLogger("**.c_fc", statistics="l2")
        run = trainer(tmp_path, model, batches(2), for_transformers(logger), max_grad_norm=1e-3, **options)
        run.train_dataset = [{"input_ids": row, "labels": row} for row in (torch.arange(64) % 11).reshape(8, 8)]
        run.train()
        return [reading.statistics["l2"] for reading in logger.readings]

    assert norms(activation_checkpointing=True) == pytest.approx(norms(), rel=1e-6)


def test_an_alarm_can_stop_the_training(tmp_path):
    monitor = HealthMonitor(every_n_steps=1, window=2, rules=[ALWAYS], stop_on="alarm")
    run = trainer(tmp_path, Model(mlp()), batches(*[4] * 8), for_transformers(monitor))
    run.train()
    assert run.state.global_step < 8


class Fails(Model):
    """Raises at the end of a forward pass of which this is true."""

    def __init__(self, is_to_fail):
        super().__init__(mlp())
        self.is_to_fail = is_to_fail

    def forward(self, x):
        output = super().forward(x)
        if self.is_to_fail(self):
            raise KeyError("the batch")
        return output


@pytest.mark.parametrize(("in_training", "watched"), [(True, everything), (False, both_stages)])
def test_close_detaches_the_hooks_of_a_training_or_an_evaluation_that_failed(tmp_path, in_training, watched):
    model = Fails(lambda model: model.training is in_training)
    before, watching = hooks_of(model), for_transformers(watched())
    with pytest.raises(KeyError):
        trainer(tmp_path, model, batches(4), watching, eval_strategy="epoch").train()
    watching.close()
    assert hooks_of(model) == before


def test_the_next_training_begins_anew_after_one_that_failed(tmp_path):
    failures, logger = [True], ActivationLogger("net.0", every_n_steps=1)
    model = Fails(lambda model: failures and failures.pop())
    run = trainer(tmp_path, model, batches(4, 4), for_transformers(logger, CSVLogger(tmp_path)))
    with pytest.raises(KeyError):
        run.train()
    run.train()
    assert len(logger.readings) == 1
    assert hooks_of(model) == hooks_of(Model(mlp()))


def test_the_last_step_of_an_epoch_may_have_fewer_batches(tmp_path):
    data = batches(*[4] * 5)
    logger = ActivationLogger("net.0", every_n_steps=1)
    in_transformers(tmp_path, mlp(), data, logger, gradient_accumulation_steps=2, num_train_epochs=2)
    assert {step for step, _ in logged(tmp_path / "hookboard")} == {*range(6)}


def test_it_can_be_copied_and_pickled_during_a_training(tmp_path):
    copies, watching = [], for_transformers(ActivationLogger("net.0", every_n_steps=1))
    make = At(
        "on_step_end", lambda control: copies.extend([copy.deepcopy(watching), pickle.loads(pickle.dumps(watching))])
    )
    trainer(tmp_path / "first", Model(mlp()), batches(4, 4), watching, make).train()
    for number, copied in enumerate(copies):
        folder = tmp_path / str(number)
        trainer(folder, Model(mlp()), batches(4, 4), copied).train()
        assert_equal(logged(folder / "hookboard"), logged(tmp_path / "first" / "hookboard"))
    assert len(copies) == 2


@pytest.mark.parametrize(("argument", "given"), [("callbacks", [HealthMonitor]), ("loggers", "logs")])
def test_what_is_no_callback_or_logger_is_refused(argument, given):
    with pytest.raises(ValueError, match=argument):
        for_transformers(**{"callbacks": [], argument: given})


def test_training_goes_on_where_the_folder_cannot_be_made(tmp_path):
    (tmp_path / "hookboard").write_text("a file")
    monitor = HealthMonitor(every_n_steps=1)
    run = trainer(tmp_path, Model(mlp()), batches(4, 4), for_transformers(monitor))
    with pytest.warns(HookboardWarning, match="writing to TensorBoard is switched off.*FileExistsError"):
        run.train()
    assert run.state.global_step == 2
    assert monitor._run.seen


@pytest.mark.parametrize(("point", "first"), [("on_step_begin", 0), ("on_substep_end", 1), ("on_step_end", 1)])
def test_a_callback_added_in_mid_training_watches_from_the_next_step_on(tmp_path, point, first):
    data, logger = batches(*[4] * 6), ActivationLogger("net.0", every_n_steps=1)
    watching = for_transformers(logger)
    run = trainer(tmp_path, Model(mlp()), data, gradient_accumulation_steps=2)
    run.add_callback(At(point, lambda control: run.add_callback(watching)))
    run.train()
    assert {step for step, _ in logged(tmp_path / "hookboard")} == {*range(first, 3)}
