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


@pytest.fixture
def cells(python, monkeypatch):
    """The cells of code as they are after the run, by their last line."""
    monkeypatch.setattr(sys, "executable", python)  # which the kernel is started with
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


def test_what_the_text_says_is_shown(cells):
    (sick,) = shown(cells, "train(sick).verdicts", "text/plain")
    (healthy,) = shown(cells, "train(healthy).verdicts", "text/plain")
    assert re.search(r"^alarm: \w+ in (conv2|relu2) .+ Try: .+\.$", sick, re.MULTILINE)
    assert "alarm:" not in healthy
    streams = [o for cell in cells for o in cell.outputs if o.output_type == "stream" and o.name == "stdout"]
    accuracies = re.search(r"sick: (\d+)%, repaired: (\d+)%", "".join(o.text for o in streams)).groups()
    assert int(accuracies[0]) < 20 < 80 < int(accuracies[1])
    (table,) = shown(cells, "seen", "text/plain")
    assert len(table.splitlines()) == 1 + 5
    (picture,) = shown(cells, 'seen["relu1"].image()', "image/png")
    assert len(picture) > 1000


def test_the_notebook_is_committed_without_outputs():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []
