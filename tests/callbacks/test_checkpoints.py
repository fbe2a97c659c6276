"""What a checkpoint holds of callbacks, and what becomes of it in a fit that is not quite the same."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, callbacks
from lightning.pytorch.callbacks import LearningRateFinder
from torch import nn
from toys import ALWAYS, Toy, batches, events, loader, trainer

from hookboard import ActivationLogger, Finding, HealthMonitor, Intervention, KernelLogger, Rule, Scale
from hookboard.base.kept import KEPT
from hookboard.loops import callback as base
from hookboard.loops.saved import KEY, VERSION

DATA = batches(*[4] * 12)

pytestmark = pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")


ONE_TAG = pytest.mark.filterwarnings("ignore:hookboard. HealthMonitor .callback 1. and HealthMonitor")


def net(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *(middle or (nn.ReLU(),)), nn.Linear(8, 3))


def pictured():
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 3, padding=1))


def monitor(**options):
    return HealthMonitor(**{"every_n_steps": 1, "rules": ALWAYS, **options})


def checkpoint(folder, *callbacks, model=None, **options):
    """The path of a checkpoint after six steps."""
    path = folder / "six.ckpt"
    one = trainer(folder / "first", *callbacks, **options)
    one.fit(model or Toy(net()), loader(DATA[:6]), loader(DATA[:6]))
    one.save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def of_a_monitor(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("six"), monitor())


@pytest.fixture
def saved(of_a_monitor, tmp_path):
    """The path of a checkpoint of a fit with `monitor()`, which the test may change."""
    return Path(shutil.copy(of_a_monitor, tmp_path))


def goes_on(folder, path, *callbacks, model=None, **options):
    one = trainer(folder / "second", *callbacks, **{"max_epochs": 2, **options})
    one.fit(model or Toy(net()), loader(DATA[:6]), loader(DATA[:6]), ckpt_path=path)
    return one


def changed(path, change):
    """The checkpoint with what this function makes of our entries."""
    content = torch.load(path, weights_only=True)
    content[KEY] = change(content[KEY])
    torch.save(content, path)
    return path


def sinces(callback):
    return {(verdict.rule, verdict.module): verdict.since for verdict in callback.verdicts}


@pytest.fixture
def said(monkeypatch):
    """What is said about checkpoints."""
    lines = []
    monkeypatch.setattr(base, "alert", lines.append)
    return lines


def test_a_checkpoint_is_read_without_pickle(tmp_path):
    content = torch.load(checkpoint(tmp_path, monitor(), ActivationLogger(every_n_steps=1)), weights_only=True)
    assert [entry["callback"] for entry in content[KEY]] == ["HealthMonitor", "ActivationLogger"]
    for entry in content[KEY]:
        assert {name: type(value) for name, value in entry.items()} == {
            "version": int,
            "callback": str,
            "arguments": dict,
            "parts": dict,
        }


def test_what_has_nothing_to_keep_is_not_in_the_checkpoint(tmp_path):
    content = torch.load(checkpoint(tmp_path, Intervention(Scale(0.5), "net.0")), weights_only=True)
    assert KEY not in content


def test_a_checkpoint_of_the_weights_alone_is_as_it_was(tmp_path):
    one = trainer(tmp_path, monitor())
    one.fit(Toy(net()), loader(DATA), loader(DATA))
    one.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    assert KEY not in torch.load(tmp_path / "weights.ckpt", weights_only=True)


def test_a_second_fit_without_a_checkpoint_begins_anew(tmp_path, said):
    callback = monitor()
    path = checkpoint(tmp_path, callback)
    goes_on(tmp_path, path, callback)
    assert sinces(callback) == {("always", "net.0"): 0}
    one = trainer(tmp_path / "third", callback)
    one.fit(Toy(net()), loader(DATA[:3]), loader(DATA[:3]))
    assert "measured 3 times from step 0 to 2" in text_of(tmp_path / "third")
    assert said == []


def text_of(folder):
    """The last table of the verdicts."""
    return events(folder).Tensors("health/verdict/text_summary")[-1].tensor_proto.string_val[0].decode()


def test_a_checkpoint_that_only_an_evaluation_has_loaded_is_not_continued(tmp_path, saved):
    callback = monitor()
    one = trainer(tmp_path / "second", callback, limit_val_batches=1.0)
    one.validate(Toy(net()), loader(DATA), ckpt_path=saved, verbose=False)
    one.fit(Toy(net()), loader(DATA[:3]), loader(DATA[:3]))
    assert "measured 3 times from step 0 to 2" in text_of(tmp_path / "second")


@ONE_TAG
def test_of_two_monitors_each_goes_on_with_its_own(tmp_path, said):
    def first_layer(run):
        yield Finding(run.layers[0].name, "it is there", "leave it")

    def two():
        return [monitor(modules=name, rules=Rule("first_layer", first_layer)) for name in ("net.0", "net.2")]

    path = checkpoint(tmp_path, *two())
    first, second = reversed(two())
    goes_on(tmp_path, path, first, second)
    assert said == []
    assert sinces(first) == {("first_layer", "net.2"): 0}
    assert sinces(second) == {("first_layer", "net.0"): 0}


@pytest.mark.parametrize("option", [{"stop_on": "nonfinite"}, {"nonfinite": "late"}])
def test_arguments_that_decide_nothing_that_is_known_may_change(option, tmp_path, said):
    callback = monitor(rules=None, **option)
    goes_on(tmp_path, checkpoint(tmp_path, monitor(rules=None)), callback)
    assert said == []
    assert "from step 0 to 11" in text_of(tmp_path / "second")


MINE = Rule("mine", ALWAYS.judge)
OTHERS = {
    "every_n_steps was 1 and is 2": {"every_n_steps": 2},
    "window was 3 and is 2": {"window": 2},
    "modules was None and is 'net.*'": {"modules": "net.*"},
    "types was None and is Linear": {"types": nn.Linear},
    "rules was always and is mine": {"rules": MINE},
}


@pytest.mark.parametrize("why", OTHERS)
def test_a_monitor_with_other_arguments_begins_anew_and_says_why(why, tmp_path, saved, said):
    callback = monitor(**OTHERS[why])
    goes_on(tmp_path, saved, callback)
    (line,) = said
    assert why in line
    assert min(sinces(callback).values()) >= 6


def parts_in(tree):
    """The tree and each tree in it."""
    yield tree
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from parts_in(each)


def without_one(parts):
    """The parts, without the last attribute of each object."""
    for one in {id(each): each for each in parts_in(parts["tree"]) if isinstance(each, dict) and None in each}.values():
        one.popitem()
    return parts


def shorter(parts):
    """The parts, with one number less of each dtype."""
    return {**parts, "numbers": {kind: joined[:-1] for kind, joined in parts["numbers"].items()}}


def of_fewer_layers(parts):
    """The parts, with one layer less in the tables of the run."""
    table = parts["tree"]["train"]["reporter"]["judge"]["run"]["table"]
    for columns in table["columns"]:
        columns["shape"] = (*columns["shape"][:-1], columns["shape"][-1] - 1)
    return parts


def of_one_look_less(parts):
    parts["tree"]["train"]["reporter"]["judge"]["run"]["table"]["steps"].pop()
    return parts


def with_a_foreign_class(parts):
    parts["tree"]["train"]["reporter"]["judge"]["run"]["single_looks"][0] = {None: "Path", "path": "/"}
    return parts


SPOILED = {
    "nothing is there": lambda entries: [],
    "another version": lambda entries: [{**entries[0], "version": 99}],
    "no list": lambda entries: 3,
    "no entry": lambda entries: ["x"],
    "a part is missing": lambda entries: [{"callback": "HealthMonitor", "version": 1}],
    "no parts": lambda entries: [{**entries[0], "parts": "text"}],
    "an unknown class": lambda entries: [{**entries[0], "parts": with_a_foreign_class(entries[0]["parts"])}],
    "a part of an object is missing": lambda entries: [{**entries[0], "parts": without_one(entries[0]["parts"])}],
    "a number is missing": lambda entries: [{**entries[0], "parts": shorter(entries[0]["parts"])}],
    "an array of another shape": lambda entries: [{**entries[0], "parts": of_fewer_layers(entries[0]["parts"])}],
    "a step is missing": lambda entries: [{**entries[0], "parts": of_one_look_less(entries[0]["parts"])}],
}


@pytest.mark.parametrize("how", SPOILED)
def test_what_cannot_be_read_is_said_once_and_the_monitor_begins_anew(how, tmp_path, saved, said):
    callback = monitor()
    goes_on(tmp_path, changed(saved, SPOILED[how]), callback)
    (line,) = said
    assert "HealthMonitor starts over" in line
    assert sinces(callback) == {("always", "net.0"): 6}


def test_a_checkpoint_of_before_there_was_anything_in_it_is_taken(tmp_path, saved, said):
    content = torch.load(saved, weights_only=True)
    del content[KEY]
    torch.save(content, saved)
    callback = monitor()
    goes_on(tmp_path, saved, callback, ActivationLogger(every_n_steps=1))
    (line,) = said
    assert "no state for this callback" in line
    assert sinces(callback) == {("always", "net.0"): 6}


def test_a_model_with_other_layers_keeps_what_is_known_of_those_that_are_still_there(tmp_path, saved, said):
    callback = monitor()
    model = Toy(net(nn.ReLU()))
    model.net = nn.Sequential(*model.net, nn.Linear(3, 3))
    model.strict_loading = False
    content = torch.load(saved, weights_only=True)
    content["optimizer_states"] = [torch.optim.SGD(model.parameters(), lr=0.01).state_dict()]
    torch.save(content, saved)
    goes_on(tmp_path, saved, callback, model=model)
    assert said == []
    assert sinces(callback) == {("always", "net.0"): 0}
    assert "4 layers, measured 12 times from step 0 to 11" in text_of(tmp_path / "second")


def test_an_alarm_of_before_does_not_end_the_fit_that_is_continued(tmp_path):
    path = checkpoint(tmp_path, monitor(stop_on="always"))
    one = goes_on(tmp_path, path, monitor(stop_on="always"))
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
        one = trainer(folder, *order, default_root_dir=folder)
        one.fit(HasRate(net()), loader(DATA), loader(DATA))
        assert "measured 12 times from step 0 to 11" in text_of(folder)
    assert said == []


def test_a_kernel_is_compared_with_that_of_the_very_start(tmp_path, said):
    class First(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            (self.kernels,) = (each.clone() for each in kernels._live["train"].memory.values())

    kernels, first = KernelLogger(every_n_steps=2), First()
    path = checkpoint(tmp_path, KernelLogger(every_n_steps=2), model=Toy(pictured()))
    goes_on(tmp_path, path, kernels, first, model=Toy(pictured()))
    assert said == []
    assert first.kernels.equal(pictured()[1].weight)


LAYOUT = "cc54ac492cce3890"


def names_in(tree):
    """The attributes of each object in a tree that lasts for a fit."""
    if isinstance(tree, dict) and tree.get(None) == "lasting":
        yield tuple(map(str, tree))
    for part in tree.values() if isinstance(tree, dict) else ():
        yield from names_in(part)


def test_the_format_is_that_of_its_version(tmp_path):
    """Where something else is kept than before, `VERSION` in `saved.py` must be another number, and `LAYOUT` too."""
    path = checkpoint(tmp_path, monitor(rules=None), KernelLogger(every_n_steps=2), model=Toy(pictured()))
    found = {(name, names) for name, (_, names) in KEPT.items()}
    for entry in torch.load(path, weights_only=True)[KEY]:
        found |= set(names_in(entry["parts"]["tree"]))
    assert (VERSION, hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:16]) == (16, LAYOUT)


def lasting_in(lasting):
    """The object, and what it keeps that keeps something itself."""
    yield lasting
    for part in (getattr(lasting, name) for name in lasting.keeps):
        if hasattr(part, "keeps"):
            yield from lasting_in(part)


NOT_KEPT = {
    # what it is given
    "Judge": {"_rules", "_names"} | {"_verdicts"},
    "Silence": {"since", "looks", "samples", "ended", "counts", "starts", "parts", "_seen", "_units", "_rows"},
    "Run": {"window", "_watched", "facts"}
    # and what follows from the rest
    | {"first", "evaluation", "first_nonfinite", "arrays", "now", "latest", "initial", "_ordered_by"},
    "RunTable": {"layers"} | {"recent", "_recent", "_end", "_course", "_spoiled"},
    "LossCurve": {"_harm"},
}


def test_each_attribute_of_a_run_is_kept_or_known_not_to_be(tmp_path):
    """A new attribute is one more name in `keeps`; or in NOT_KEPT, if a resumed fit has it without a checkpoint."""

    class Sees(Callback):
        def on_train_end(self, trainer, pl_module):
            judge = callback._live["train"].reporter.judge
            self.found = {type(one).__name__: vars(one).keys() - set(one.keeps) for one in lasting_in(judge)}

    sees, callback = Sees(), monitor()
    checkpoint(tmp_path, sees, callback)
    assert sees.found == NOT_KEPT


def test_a_layer_may_have_any_name(tmp_path, said):
    def odd():
        torch.manual_seed(0)
        return nn.ModuleDict({"None": nn.Linear(4, 8), "array": nn.Linear(8, 8), "lasting": nn.Linear(8, 3)})

    class InTurn(Toy):
        def training_step(self, batch):
            for layer in self.net.values():
                batch = layer(batch)
            return batch.square().mean()

    callback = monitor()
    goes_on(tmp_path, checkpoint(tmp_path, monitor(), model=InTurn(odd())), callback, model=InTurn(odd()))
    assert said == []
    assert "3 layers, measured 12 times" in text_of(tmp_path / "second")
