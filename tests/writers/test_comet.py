"""What CometLogger gets, read back from the archive of the real package, offline."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.spawns

pytest.importorskip("comet_ml")


@pytest.fixture(scope="module")
def archive(tmp_path_factory, python):
    """What was printed, the messages by kind, and the contents of files."""
    folder = tmp_path_factory.mktemp("comet")
    command = [python, str(Path(__file__).parent / "comet_fit.py"), str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    [path] = folder.glob("*.zip")
    with zipfile.ZipFile(path) as found:
        said = [json.loads(line) for line in found.read("messages.json").splitlines()]
        files = {name: found.read(name) for name in found.namelist()}
    kinds = {message["type"] for message in said}
    return done, {kind: [one["payload"] for one in said if one["type"] == kind] for kind in kinds}, files


def test_each_number_is_a_metric_of_its_step(archive):
    done, messages, _ = archive
    metrics = [one["metric"] for one in messages["metric_msg"]]
    metrics = [one for one in metrics if one["metricName"] == "activation_mean/net.0"]
    assert [one["step"] for one in metrics] == list(range(8))
    assert metrics[-1]["metricValue"] == float(done.stdout.split()[-1])


def test_the_page_and_the_verdicts_are_files_and_the_last_version_of_these_has_all_looks(archive):
    _, messages, files = archive
    sent = [one | one["additional_params"] for one in messages["file_upload"] if one["upload_type"] == "asset"]
    last = {one.get("fileName"): one for one in sent}
    assert last["health/verdict.md"]["step"] == 7
    assert b"measured 8 times" in files[last["health/verdict.md"]["file_path"]]
    assert files[last["report.html"]["file_path"]].startswith(b"<!doctype html>")


def test_histograms_alone_are_refused(archive):
    said = archive[0].stderr
    assert "CometLogger does not support histograms, so they are left out" in said
    assert said.count("does not support") == 1
    assert "switched off" not in said
