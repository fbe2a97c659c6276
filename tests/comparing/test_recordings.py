"""Recordings: what one process writes, another compares with; a damaged or foreign file is an error that says so."""

import copy
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from comparing import versions
from comparing.nets import INPUTS, ConvNet, Transformer, loss, model, planted
from torch import nn

from hookboard import compare, record

GELU = ("blocks.1.act (output)", lambda net: setattr(net.blocks[1], "act", nn.GELU("tanh")))


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "left.zip"
    record(model(Transformer), INPUTS[Transformer], path, loss=loss)
    return path


@pytest.fixture
def recorded(transformer, tmp_path):
    """The path of a recording of the transformer, which the test may damage."""
    return Path(shutil.copy(transformer, tmp_path))


def test_a_recording_stands_for_the_left_model(recorded):
    net, tokens = model(Transformer), INPUTS[Transformer]
    assert compare(recorded, net, tokens, loss=loss).differences == ()
    where, change = GELU
    [found] = compare(recorded, planted(net, change), tokens, loss=loss).differences
    assert str(found.spot) == where
    assert "approximate none vs. tanh" in found.cause


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_recording_in_another_precision_is_equal_up_to_rounding(recorded, dtype):
    other = model(Transformer).to(dtype)
    assert compare(recorded, other, INPUTS[Transformer], loss=lambda output: loss(output.float())).differences == ()


@pytest.mark.spawns
def test_another_process_writes_what_this_one_compares_with(tmp_path, python):
    code = (
        "from comparing.nets import INPUTS, Transformer, loss, model\n"
        "from hookboard import record\n"
        f"record(model(Transformer), INPUTS[Transformer], {str(tmp_path / 'right.zip')!r}, loss=loss)\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    subprocess.run([python, "-c", code], check=True, env=environment, capture_output=True)
    assert compare(tmp_path / "right.zip", model(Transformer), INPUTS[Transformer], loss=loss).differences == ()


def test_recording_leaves_nothing_behind(tmp_path):
    net = model(ConvNet, training=True)
    before = copy.deepcopy(net.state_dict())
    state = torch.get_rng_state()
    record(net, INPUTS[ConvNet], tmp_path / "left.zip", loss=loss)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(one.grad is None for one in net.parameters())


def rewritten(path, change):
    """Write the file again, with another index."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    index = json.loads(parts["index.json"])
    change(index)
    parts["index.json"] = json.dumps(index).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)


DAMAGE = {
    "no archive": lambda path: path.write_bytes(b"not a zip"),
    "another archive": lambda path: zipfile.ZipFile(path, "w").close(),
    "a newer version": lambda path: rewritten(path, lambda index: index.update(version=99)),
    "no modules": lambda path: rewritten(path, lambda index: index.pop("modules")),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_is_no_recording_is_an_error_with_its_path(recorded, name):
    DAMAGE[name](recorded)
    with pytest.raises(ValueError, match=r"left\.zip is not a hookboard recording, or is damaged"):
        compare(recorded, model(Transformer), INPUTS[Transformer])


def test_a_tensor_of_another_size_than_its_shape_is_an_error(recorded):
    rewritten(recorded, lambda index: index["spots"][0][1].update(shape=[10**6]))
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        compare(recorded, model(Transformer), INPUTS[Transformer])


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.zip"):
        compare(tmp_path / "nothing.zip", model(Transformer), INPUTS[Transformer])


def test_what_is_neither_a_model_nor_a_path_is_told():
    with pytest.raises(TypeError, match="left must be a model or the path of a recording; got int"):
        compare(3, model(ConvNet), INPUTS[ConvNet])
    with pytest.raises(TypeError, match="right must be a model; got the path of a recording, which comes first"):
        compare(model(ConvNet), "left.zip", INPUTS[ConvNet])


OTHERS = sorted((Path(__file__).parent / "recordings").iterdir())
MISTAKES = {
    "resnet": ("4.bn2 (output)", lambda net: setattr(net[4].bn2, "eps", 1e-2)),
    "transformer": ("layers.layers.1.linear2 (output)", lambda net: net.layers.layers[1].linear2.bias.zero_()),
    "lstm": ("lstm (output 0)", lambda net: net.lstm.weight_hh_l1.mul_(1.02)),
}


@pytest.mark.parametrize("name", versions.MODELS)
@pytest.mark.parametrize("version", OTHERS, ids=lambda path: path.name)
def test_a_recording_of_another_version_is_equal_to_the_model_here_and_a_mistake_is_found(version, name):
    recording, (_, inputs), (where, change) = version / f"{name}.zip", versions.MODELS[name], MISTAKES[name]
    assert compare(recording, versions.made(name), inputs, loss=versions.loss).differences == ()
    assert str(compare(recording, planted(versions.made(name), change), inputs, loss=versions.loss).first.spot) == where
