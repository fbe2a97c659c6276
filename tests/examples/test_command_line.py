"""The examples as a person runs them, from the command line."""

import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from toys import events, scalars

pytestmark = pytest.mark.spawns


@pytest.fixture(scope="module")
def fit(run_script):
    """What trains an example with these arguments and says how that ended."""
    return partial(fit_with, run_script)


def fit_with(run_script, example, folder, *arguments, config=None):
    config = config or f"configs/{example}.yaml"
    given = ["fit", "--config", str(config), "--trainer.logger.init_args.save_dir", str(folder), *arguments]
    return run_script(f"examples/{example}.py", *given)


@pytest.fixture(scope="module")
def trained_digits(fit, tmp_path_factory):
    """One training on the digits: the folder of its log, and what it said."""
    folder = tmp_path_factory.mktemp("digits")
    done = fit("digits", folder, "--trainer.enable_progress_bar", "false", "--trainer.max_epochs", "10")
    assert done.returncode == 0, done.stderr
    return folder / "digits" / "version_0", done.stderr


def test_the_demo_learns_and_says_what_to_type(trained_digits):
    folder, said = trained_digits
    assert max(scalars(folder)["val_accuracy"].values()) > 0.95
    (line,) = re.findall(r"Open:\s+(\S+)\s+--logdir\s+(\S+)\s+\(tab\s+Hookboard\)", said)
    assert shutil.which(line[0])
    assert Path(line[1]) == folder


def test_every_watched_module_has_scalars_and_histograms_and_there_are_pictures_of_all_kinds(trained_digits):
    found = events(trained_digits[0]).Tags()
    modules = {tag.partition("/")[2] for tag in found["scalars"] if tag.startswith("activation_std/")}
    assert {"stem.conv", "stem.norm", "stem.relu", "blocks.0.conv1", "blocks.2.relu2", "head"} <= modules
    assert {tag for tag in found["histograms"] if tag.startswith("activations/")} == {
        f"activations/{m}" for m in modules
    }
    gradients = {tag.partition("/")[2] for tag in found["scalars"] if tag.startswith("gradient_std/")}
    assert {"stem.conv", "stem.relu", "blocks.2.conv2", "head"} <= gradients
    assert "stem.norm" not in gradients
    assert {f"gradients/{module}" for module in gradients} <= set(found["histograms"])
    assert {"parameter_update_ratio/head.weight", "parameter_gradient_std/head.weight"} <= set(found["scalars"])
    assert {"parameters/head.weight", "parameter_gradients/head.weight"} <= set(found["histograms"])
    kinds = {tag.partition("/")[0] for tag in found["images"]}
    assert kinds == {"feature_maps", "kernels", "cam", "health"}


def test_the_saved_config_runs_again(fit, trained_digits, tmp_path):
    done = fit("digits", tmp_path, "--trainer.max_epochs", "1", config=trained_digits[0] / "config.yaml")
    assert done.returncode == 0, done.stderr
    assert "activation_std/head" in scalars(tmp_path / "digits" / "version_0")


def test_the_character_transformer_trains(fit, tmp_path):
    done = fit("char_transformer", tmp_path, "--trainer.max_steps", "40", "--trainer.enable_progress_bar", "false")
    assert done.returncode == 0, done.stderr
    found = scalars(tmp_path / "char_transformer" / "version_0")
    watched = {tag.partition("/")[2] for tag in found if tag.startswith("activation_")}
    assert any("attention" in name for name in watched)
    assert any("norm" in name for name in watched)
