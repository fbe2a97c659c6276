"""What a checkpoint holds of callbacks, and what becomes of it in a fit that is not quite the same."""

import pickle

import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import LearningRateFinder
from toys import ALWAYS, Toy, batches, events, fit, loader, mlp, trainer

from hookboard import ActivationLogger, HealthMonitor, Intervention, Scale
from hookboard.health.look import Loss
from hookboard.health.losses import LossCurve
from hookboard.loops import callback as base
from hookboard.loops.callback import KEY

DATA = batches(*[4] * 12)

pytestmark = pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")


def monitor(**options):
    return HealthMonitor(**{"every_n_steps": 1, "rules": ALWAYS, **options})


def checkpoint(folder, *callbacks):
    """The path of a checkpoint after six steps."""
    path = folder / "six.ckpt"
    fit(folder / "first", Toy(mlp()), DATA[:6], *callbacks).save_checkpoint(path)
    return path


@pytest.fixture
def saved(tmp_path):
    """The path of a checkpoint of a fit with `monitor()`, which the test may change."""
    return checkpoint(tmp_path, monitor())


def goes_on(folder, path, *callbacks):
    one = trainer(folder / "second", *callbacks, max_epochs=2)
    one.fit(Toy(mlp()), loader(DATA[:6]), loader(DATA[:6]), ckpt_path=path)
    return one


def sinces(callback):
    return {(verdict.rule, verdict.module): verdict.since for verdict in callback.verdicts}


@pytest.fixture
def said(monkeypatch):
    """What is said about checkpoints."""
    lines = []
    monkeypatch.setattr(base, "alert", lines.append)
    return lines


def test_a_checkpoint_has_a_few_plain_numbers_of_the_monitor(tmp_path):
    content = torch.load(checkpoint(tmp_path, monitor(), ActivationLogger(every_n_steps=1)), weights_only=True)
    (entry,) = content[KEY]
    assert {name: type(value) for name, value in entry.items()} == {"callback": str, "state": dict}
    assert [step for step, *_ in entry["state"]["losses"]["recent"]] == [*range(6)]


def test_the_losses_of_a_long_training_take_less_than_100_kb():
    losses = LossCurve()
    losses.extend(Loss(step, step, 1 / (1 + step)) for step in range(5000))
    assert len(pickle.dumps(losses.state_dict())) < 60_000
    resumed = LossCurve()
    resumed.load_state_dict(losses.state_dict())
    assert (resumed.steps, resumed.start, resumed.is_falling) == (5000, losses.start, losses.is_falling)


@pytest.mark.parametrize(
    ("make", "weights_only"),
    [
        (lambda: [Intervention(Scale(0.5), "net.0"), ActivationLogger(every_n_steps=1)], False),
        (lambda: [monitor()], True),
    ],
    ids=["nothing to keep", "the weights alone"],
)
def test_where_nothing_is_to_be_kept_the_checkpoint_is_as_it_was(tmp_path, make, weights_only):
    run = fit(tmp_path, Toy(mlp()), DATA, *make())
    run.save_checkpoint(tmp_path / "kept.ckpt", weights_only=weights_only)
    assert KEY not in torch.load(tmp_path / "kept.ckpt", weights_only=True)


def test_a_second_fit_without_a_checkpoint_begins_anew(tmp_path, saved, said):
    callback = monitor()
    goes_on(tmp_path, saved, callback)
    assert sinces(callback) == {("always", "net.0"): 6}
    fit(tmp_path / "third", Toy(mlp()), DATA[:3], callback)
    assert "measured 3 times from step 0 to 2" in text_of(tmp_path / "third")
    assert said == []


def text_of(folder):
    """The last table of the verdicts."""
    return events(folder).Tensors("health/verdict/text_summary")[-1].tensor_proto.string_val[0].decode()


def test_a_checkpoint_that_only_an_evaluation_has_loaded_is_not_continued(tmp_path, saved):
    callback = monitor()
    one = trainer(tmp_path / "second", callback, limit_val_batches=1.0)
    one.validate(Toy(mlp()), loader(DATA), ckpt_path=saved, verbose=False)
    one.fit(Toy(mlp()), loader(DATA[:3]), loader(DATA[:3]))
    assert "measured 3 times from step 0 to 2" in text_of(tmp_path / "second")


def test_of_two_monitors_each_goes_on_with_its_own(tmp_path, said):
    def two():
        return [monitor(modules=name) for name in ("net.0", "net.2")]

    again = two()
    goes_on(tmp_path, checkpoint(tmp_path, *two()), *again)
    assert said == []
    assert [one._run.losses.steps for one in again] == [12, 12]


SPOILED = {
    "no list": lambda entries: 3,
    "of an older version": lambda entries: [{"callback": "HealthMonitor", "version": 15, "parts": {}}],
    "no state": lambda entries: [{**entries[0], "state": "text"}],
    "other losses": lambda entries: [{**entries[0], "state": {"losses": {"first": [3]}}}],
}


@pytest.mark.parametrize("how", SPOILED)
def test_what_cannot_be_read_is_said_once_and_the_monitor_begins_anew(how, tmp_path, saved, said):
    content, callback = torch.load(saved, weights_only=True), monitor()
    content[KEY] = SPOILED[how](content[KEY])
    torch.save(content, saved)
    goes_on(tmp_path, saved, callback)
    (line,) = said
    assert "HealthMonitor starts over" in line
    assert sinces(callback) == {("always", "net.0"): 6}


def test_a_checkpoint_without_a_monitor_is_taken(tmp_path, said):
    callback = monitor()
    goes_on(tmp_path, checkpoint(tmp_path), callback, ActivationLogger(every_n_steps=1))
    assert said == []
    assert sinces(callback) == {("always", "net.0"): 6}


def test_an_alarm_that_lasts_is_said_again_and_ends_the_fit_that_is_continued_too(tmp_path, saved, lines):
    one = goes_on(tmp_path, saved, monitor(stop_on="always"))
    assert len([line for line in lines if "alarm: always in net.0" in line and "measured" not in line]) == 1
    assert one.global_step == 9


@pytest.mark.skipif(not hasattr(callbacks, "WeightAveraging"), reason="before 2.6 the search takes steps of the fit")
def test_what_lightning_saves_while_it_looks_for_a_learning_rate_is_no_fit_to_go_on_with(tmp_path, said):
    class HasRate(Toy):
        lr = 0.01

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    callback = monitor()
    for order in ([LearningRateFinder(num_training_steps=3), callback], [callback, LearningRateFinder()]):
        folder = tmp_path / str(order.index(callback))
        fit(folder, HasRate(mlp()), DATA, *order, default_root_dir=folder)
        assert "measured 12 times from step 0 to 11" in text_of(folder)
    assert said == []
