"""On two ranks, callbacks log and say in loops without a Lightning Trainer what they do in one."""

import importlib.util
from pathlib import Path

import pytest
import torch
from ranks.strategies import HAS_FSDP, needs_fsdp
from same_logs import assert_equal, logged

pytestmark = pytest.mark.spawns

HAS_TRANSFORMERS = all(map(importlib.util.find_spec, ["transformers", "accelerate"]))
LOOPS = ["trainer", "ddp", "fabric", "trainer_fp16", "fabric_fp16", *(["trainer_fsdp", "fsdp"] if HAS_FSDP else [])]
LOOPS += ["transformers"] if HAS_TRANSFORMERS else []
needs_transformers = pytest.mark.skipif(not HAS_TRANSFORMERS, reason="transformers or accelerate is not installed")


@pytest.fixture(scope="module")
def folder(run_script, tmp_path_factory):
    """The folder with the logs of all loops."""
    folder = tmp_path_factory.mktemp("looped")
    done = run_script(Path(__file__).with_name("looped.py"), folder, *LOOPS, ranks=2)
    assert done.returncode == 0, done.stderr
    return folder


PAIRS = [("ddp", "trainer"), ("fabric", "trainer"), pytest.param("fsdp", "trainer_fsdp", marks=needs_fsdp)]

LAST = 5
OF_THE_ALARM = {"health/verdict/text_summary", "hookboard/health", "health/before_nonfinite/text_summary"}
"""Texts that name the batch of the first NaN, which Hugging Face's Trainer does not tell."""


def logged_but_of_the_alarm(folder):
    return {at: value for at, value in logged(folder).items() if at[0] != LAST or at[1] not in OF_THE_ALARM}


def said(folder, loop):
    return torch.load(folder / f"{loop}.0")


@pytest.mark.parametrize(("mine", "theirs"), PAIRS)
def test_a_loop_logs_and_says_what_a_trainer_does(folder, mine, theirs):
    assert_equal(logged_but_of_the_alarm(folder / mine / "0"), logged_but_of_the_alarm(folder / theirs / "0"))
    assert said(folder, mine) == said(folder, theirs) == [("alarm", "nonfinite", "net.0", LAST)]


def test_fabric_in_half_precision_logs_what_a_trainer_does_but_for_inputs(folder):
    changed = ("input_mean/net.0", "input_std/net.0", "input_abs_max/net.0", "inputs/net.0")  # Fabric converts inputs

    def but_for_inputs(loop):
        """What is logged, also without the page of the alarm, which names no layer in Fabric."""
        found = logged(folder / loop / "0").items()
        last = [tag for (step, tag), _ in found if step == LAST and tag.startswith(("health/", "hookboard/health"))]
        return {at: value for at, value in found if at[1] not in changed and not (at[0] == LAST and at[1] in last)}

    assert_equal(but_for_inputs("fabric_fp16"), but_for_inputs("trainer_fp16"))
    assert [(rule, since) for _, rule, _, since in said(folder, "fabric_fp16")] == [("nonfinite", LAST)]


@needs_transformers
def test_transformers_logs_and_says_what_a_lightning_trainer_does(folder):
    mine = logged_but_of_the_alarm(folder / "transformers" / "0" / "hookboard")
    assert_equal(mine, logged_but_of_the_alarm(folder / "trainer" / "0"))
    assert said(folder, "transformers") == said(folder, "trainer")
