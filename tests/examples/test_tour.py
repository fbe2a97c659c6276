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
    (sick,) = shown(cells, "train(sick).verdicts", "text/plain")
    (healthy,) = shown(cells, "train(healthy).verdicts", "text/plain")
    assert re.search(r"^alarm: \w+ in (conv2|relu2) .+ Try: .+\.$", sick, re.MULTILINE)
    assert "alarm:" not in healthy


def test_the_repaired_model_is_better(cells):
    sick, repaired = re.search(r"sick: (\d+)%, repaired: (\d+)%", printed(cells)).groups()
    assert int(sick) < 20 < 80 < int(repaired)


def test_tensors_are_shown_as_a_table_and_as_a_picture(cells):
    (table,) = shown(cells, "seen", "text/plain")
    assert len(table.splitlines()) == 1 + 5
    (picture,) = shown(cells, 'seen["relu1"].image()', "image/png")
    assert len(picture) > 1000


def test_the_notebook_is_committed_without_outputs():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []
