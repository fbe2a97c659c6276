"""The healthy recipes: each builds and takes steps, says where it comes from, and belongs to one half for good."""

import warnings

import pytest
import torch
from lightning.pytorch import Trainer

pytest.importorskip("sklearn")

from benchmarks.health.runner import quiet
from benchmarks.recipes.__main__ import sums
from benchmarks.recipes.catalogue import RECIPES
from benchmarks.recipes.recipe import Recipe, has_fallen

pytestmark = pytest.mark.trains

SLOW = (
    "lraspp_mobilenet_v3_large",
    "resnet18",
    "regnet_y_400mf",
    "mobilenet_v3_small",
    "time sequence",
    "distillation",
)
"""Take longer than a test of this kind may; `python -m benchmarks.recipes` trains them."""


@pytest.fixture(autouse=True)
def _one_thread_and_no_news():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        quiet()
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "recipe",
    [each for each in RECIPES if not each.needs and not any(name in each.name for name in SLOW)],
    ids=lambda each: each.name,
)
def test_a_recipe_takes_a_step(recipe):
    torch.manual_seed(0)
    training = recipe.build()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **training.options,
    )
    trainer.fit(training.module, training.loader)
    assert trainer.global_step >= 1


def test_no_name_is_there_twice_and_each_recipe_has_a_source():
    assert len({each.name for each in RECIPES}) == len(RECIPES)
    assert all(each.source for each in RECIPES)


def test_the_half_of_a_recipe_follows_from_its_name_alone():
    assert {Recipe(name, "", "", lambda: None).half for name in ("DCGAN", "timm: test_resnet")} == {"report", "tuning"}


def test_a_loss_has_fallen_if_it_lost_a_tenth():
    assert has_fallen([1.0, 1.0, 1.0, 1.0, 0.9])
    assert not has_fallen([1.0, 1.0, 1.0, 1.0, 0.95])
    assert has_fallen([-0.1, -0.3, -0.5, -0.5, -0.5])


def test_the_sums_are_by_half_and_by_rule_and_leave_out_what_did_not_learn():
    alarm = {"rule": "spike", "module": ""}
    rows = [
        {"name": "a", "half": "tuning", "alarms": [alarm, alarm], "learned": True},
        {"name": "b", "half": "report", "alarms": [], "learned": True},
        {"name": "c", "half": "report", "alarms": [alarm], "learned": False},
    ]
    assert list(sums(rows)) == [
        "tuning: 1 of 1 recipes with an alarm (spike 1)",
        "report: 0 of 1 recipes with an alarm (none)",
        "not counted, as they did not learn: c",
    ]
