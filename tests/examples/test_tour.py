"""examples/tour.ipynb runs in a real kernel, and shows what its text says."""

import re
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"

pytestmark = pytest.mark.spawns


@pytest.fixture(scope="module", autouse=True)
def kernels_are_warm(python):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)
        yield


@pytest.fixture(scope="module")
def cells():
    """The cells of code as they are after the run, by their last line."""
    notebook = nbformat.read(TOUR, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cells, last_line, mime):
    """What each cell with this last line shows, in one form."""
    return [
        output.data[mime]
        for cell in cells
        if cell.source.splitlines()[-1] == last_line
        for output in cell.outputs
        if output.output_type in ("execute_result", "display_data")
    ]


def printed(cells):
    return "".join(o.text for cell in cells for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")


def test_the_sick_layer_is_found_and_the_repaired_model_has_no_alarm(cells):
    sick, healthy = shown(cells, "monitor", "text/html")
    assert re.search(r">alarm: \w+ in (conv2|relu2)", sick)
    assert "<img" in sick
    assert ">alarm:" not in healthy


def test_printed_verdicts_are_sentences(cells):
    assert re.search(r"^alarm: \w+ in (conv2|relu2) .+ Try: .+\.$", printed(cells), re.MULTILINE)


def test_the_repaired_model_is_better(cells):
    sick, repaired = re.search(r"sick: (\d+)%, repaired: (\d+)%", printed(cells)).groups()
    assert int(sick) < 20 < 80 < int(repaired)


def test_tensors_are_shown_as_a_table_and_as_a_picture(cells):
    (table,) = shown(cells, "seen", "text/html")
    assert table.count("<tr>") == 1 + 5
    (picture,) = shown(cells, 'seen["relu1"].image()', "image/png")
    assert len(picture) > 1000


WATCHED = """
import torch
from torch import nn
from hookboard import HealthMonitor, watch
monitor = HealthMonitor(every_n_steps=1)
monitor
"""
TRAINED = """
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
with watch(model, sgd, [monitor]) as run:
    for batch in torch.randn(6, 8, 4):
        with run.step(batch):
            model(batch).square().mean().backward()
            sgd.step()
            sgd.zero_grad()
"""


def test_a_cell_with_a_monitor_follows_the_training_of_a_later_cell():
    new = nbformat.v4
    notebook = new.new_notebook(cells=[new.new_code_cell(WATCHED), new.new_code_cell(TRAINED)])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    [output] = [one for one in notebook.cells[0].outputs if one.output_type == "display_data"]
    assert "<img" in output.data["text/html"]
    assert "measured 6 times" in output.data["text/html"]


def test_the_notebook_is_committed_without_outputs():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []
