"""Recorded training steps: the step and the module in which two runs part."""

import copy
import logging
import re

import pytest
import torch
from comparing.nets import ConvNet, loss
from lightning.pytorch import LightningModule, seed_everything
from torch import nn
from toys import fit

from hookboard import HookboardWarning, StepRecorder, compare

pytestmark = pytest.mark.trains


class Trained(LightningModule):
    def __init__(self, rate=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.rate, self.drop = ConvNet(), rate, nn.Dropout(0.1)
        self.calls = 0

    def training_step(self, batch):
        self.calls += 1
        value = loss(self.drop(self.net(batch)))
        self.log("loss", value)
        return value

    def validation_step(self, batch):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)


IMAGES = list(torch.randn(6, 4, 3, 16, 16, generator=torch.Generator().manual_seed(0)))


def run(folder, model, *callbacks, **options):
    seed_everything(0, verbose=False)
    fit(None, model, [image.clone() for image in IMAGES], *callbacks, **options)
    return model


def test_two_runs_that_are_the_same_have_no_difference(tmp_path):
    for name in "ab":
        run(tmp_path, Trained(), StepRecorder(str(tmp_path / name), [0, 1, 4]))
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [f"step_0000000{step}.zip" for step in (0, 1, 4)]
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.differences == ()
    assert "equal at step 0, 1, 4" in found.notes


def test_the_first_step_and_module_in_which_two_runs_part_are_told(tmp_path):
    run(tmp_path, Trained(), StepRecorder(str(tmp_path / "a"), [0, 1, 4]))
    run(tmp_path, Trained(0.2), StepRecorder(str(tmp_path / "b"), [0, 1, 4]))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.notes[:2] == ("at step 1", "equal at step 0")
    assert found.first.module == "net.conv1"
    assert "its weight differs" in found.first.cause


def test_a_wrong_module_is_told_at_the_first_step(tmp_path):
    run(tmp_path, Trained(), StepRecorder(str(tmp_path / "a"), [0, 1]))
    other = Trained()
    other.net.norm2.eps = 1e-2
    run(tmp_path, other, StepRecorder(str(tmp_path / "b"), [0, 1]))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (str(found.first.spot), found.notes[0]) == ("net.norm2 (output)", "at step 0")
    assert "eps 1e-05 against 0.01" in found.first.cause


def test_the_training_is_the_same_bit_for_bit(tmp_path):
    plain = run(tmp_path, Trained())
    recorded = run(tmp_path, Trained(), StepRecorder(str(tmp_path / "a"), [0, 1, 4]))
    assert recorded.calls == plain.calls
    torch.testing.assert_close(recorded.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_what_is_recorded_of_a_step_is_what_the_step_computes(tmp_path):
    model = Trained()
    before = copy.deepcopy(model)
    run(tmp_path, model, StepRecorder(str(tmp_path / "a"), [0]))
    from hookboard.comparing.recorded import opened
    from hookboard.comparing.running import Spot

    with opened(tmp_path / "a" / "step_00000000.zip") as recorded:
        spot = Spot("net.conv1", 0, "output", "")
        given = recorded.tensor(recorded.index.spots[spot])
        torch.testing.assert_close(given, before.net.conv1(IMAGES[0]), rtol=0, atol=0)
        assert recorded.index.gradients.keys() == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("given", "said"), [({"steps": []}, "steps"), ({"steps": [-1]}, "steps"), ({"folder": ""}, "folder")]
)
def test_an_argument_that_means_nothing_is_refused_by_its_name(given, said):
    with pytest.raises(ValueError, match=said):
        StepRecorder(**({"folder": "run", "steps": [0]} | given))


def test_a_folder_that_cannot_be_written_is_one_warning_and_the_training_goes_on(tmp_path):
    (tmp_path / "a").write_text("a file")
    with pytest.warns(HookboardWarning, match="StepRecorder"):
        model = run(tmp_path, Trained(), StepRecorder(str(tmp_path / "a"), [0]))
    assert model.trainer.global_step == len(IMAGES)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_without_any_recorded_step_is_named(is_there, tmp_path):
    run(tmp_path, Trained(), StepRecorder(str(tmp_path / "a"), [0]))
    if is_there:
        (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'b'} is no folder with steps that")):
        compare(tmp_path / "a", tmp_path / "b")


def test_folders_without_a_step_in_common_are_told(tmp_path):
    run(tmp_path, Trained(), StepRecorder(str(tmp_path / "a"), [0]))
    run(tmp_path, Trained(), StepRecorder(str(tmp_path / "b"), [1]))
    with pytest.raises(ValueError, match="have no recorded step in common"):
        compare(tmp_path / "a", tmp_path / "b")


def test_a_step_with_manual_optimization_is_not_recorded_and_one_line_says_so(tmp_path, caplog):
    class Manual(Trained):
        automatic_optimization = False

        def training_step(self, batch):
            self.manual_backward(super().training_step(batch))
            self.optimizers().step()

    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        run(tmp_path, Manual(), StepRecorder(str(tmp_path / "a"), [0]))
    assert "StepRecorder did not record step 0: its optimization is manual." in caplog.text
    assert not list((tmp_path / "a").glob("*.zip"))
