"""What a prompt and a notebook show of callbacks and verdicts."""

import base64
import copy
import io
import pickle
import pydoc
import re
import subprocess
import sys

import pytest
from PIL import Image
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, HealthMonitor, HookboardWarning, Intervention, Scale
from hookboard.base import prompts


def monitored(net, **options):
    monitor = HealthMonitor(every_n_steps=1, **options)
    fit(None, Toy(net), batches(*[4] * 8), monitor)
    return monitor


@pytest.mark.parametrize(
    "written",
    [
        "HealthMonitor()",
        "HealthMonitor(window=4, stop_on='alarm')",
        "ActivationLogger(modules='net.*', histogram=True)",
        "Intervention(rule=Scale(factor=0.5), modules='net.0')",
    ],
)
def test_a_callback_is_shown_as_the_call_that_makes_it(written):
    names = {kind.__name__: kind for kind in (ActivationLogger, HealthMonitor, Intervention, Scale)}
    assert repr(eval(written, names)) == written


def test_a_monitor_that_has_seen_nothing_shows_its_call():
    assert HealthMonitor(window=4)._repr_html_() == "<pre>HealthMonitor(window=4)</pre>"


@pytest.fixture(scope="module")
def sick():
    """A monitor after a fit in which all units of a layer are dead."""
    net = mlp()
    net[0].bias.data.fill_(-100.0)
    return monitored(net)


def test_a_monitor_shows_its_verdicts_and_a_map_after_the_fit(sick):
    shown = sick._repr_html_()
    verdict = sick.verdicts[0]
    assert verdict.title in shown
    assert verdict.in_sentences().advice in shown
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', shown)
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert image.width > 100


def test_a_monitor_can_be_shown_while_it_trains():
    class Shows(HealthMonitor):
        def _end_batch(self, *args):
            super()._end_batch(*args)
            seen.append(self._repr_html_())

    seen: list[str] = []
    fit(None, Toy(mlp()), batches(*[4] * 4), Shows(every_n_steps=1))
    assert all("<img" in one for one in seen)
    assert len(seen) == 4


class Cell:
    """Stands for what IPython returns for a cell that is shown: keeps each form that it was given."""

    def __init__(self):
        self.shown = []

    def update(self, forms, raw):
        assert raw
        self.shown.append(forms)


@pytest.fixture
def notebook(monkeypatch):
    """The cells that are shown."""
    display = pytest.importorskip("IPython.display")
    cells = []

    def show(forms, raw, display_id):
        assert display_id
        cells.append(Cell())
        cells[-1].update(forms, raw)
        return cells[-1]

    monkeypatch.setattr(display, "display", show)
    return cells


def test_a_cell_that_shows_a_monitor_is_drawn_again_during_the_fit(notebook, monkeypatch):
    monkeypatch.setattr(prompts, "REDRAW_SHARE", 1e9)
    monitor = HealthMonitor(every_n_steps=1)
    monitor._ipython_display_()
    fit(None, Toy(mlp()), batches(*[4] * 4), monitor)
    [cell] = notebook
    assert [forms["text/plain"] for forms in cell.shown] == [repr(monitor)] * len(cell.shown)
    looks = [re.search(r"measured (?:only )?(once|\d+)", forms["text/html"]) for forms in cell.shown]
    assert [look and look[1] for look in looks] == [None, None, "once", "2", "3", "4"]


def test_a_cell_is_drawn_no_more_often_than_the_time_allows(notebook):
    monitor = HealthMonitor(every_n_steps=1)
    monitor._ipython_display_()
    fit(None, Toy(mlp()), batches(*[4] * 20), monitor)
    [cell] = notebook
    assert len(cell.shown) < 8
    assert "measured 20 times" in cell.shown[-1]["text/html"]


def test_a_cell_that_cannot_be_drawn_ends_neither_the_fit_nor_the_measurement(notebook, monkeypatch):
    monitor = HealthMonitor(every_n_steps=1)
    monitor._ipython_display_()
    monkeypatch.setattr(Cell, "update", lambda self, forms, raw: 1 / 0)
    with pytest.warns(HookboardWarning, match="the cell that shows HealthMonitor is switched off.*ZeroDivisionError"):
        fit(None, Toy(mlp()), batches(*[4] * 4), monitor)
    assert "measured 4 times" in monitor._repr_html_()


def test_names_of_layers_cannot_add_to_the_page():
    net = mlp()
    net.add_module("<script>alert(1)<\\script>", net[0].__class__(3, 3))
    monitor = monitored(net, rules=["activation_scale", "not_updated", "no_gradient"])
    assert "<script>" not in monitor._repr_html_()


def test_verdicts_are_shown_as_sentences(sick):
    verdicts = sick.verdicts
    assert repr(verdicts).splitlines() == [str(verdict) for verdict in verdicts]
    assert verdicts._repr_html_().count("<p>") == len(verdicts) > 0
    assert repr(HealthMonitor().verdicts) == "()"


def test_a_single_verdict_is_shown_as_in_the_list(sick):
    assert sick.verdicts[0]._repr_html_() in sick.verdicts._repr_html_()


def test_the_help_of_a_callback_has_no_text_of_typing():
    shown = pydoc.render_doc(HealthMonitor, renderer=pydoc.plaintext)
    assert "Parameterizes a generic class" not in shown


def test_a_misspelt_statistic_of_a_reading_is_an_error_with_the_closest_one(tmp_path):
    logger = ActivationLogger(every_n_steps=1)
    fit(tmp_path, Toy(mlp()), batches(*[4] * 2), logger)
    with pytest.raises(KeyError, match="unknown statistic 'meen'; did you mean 'mean'"):
        logger.readings[0].statistics["meen"]


@pytest.mark.spawns
def test_a_line_in_a_notebook_is_named_by_its_cell():
    pytest.importorskip("IPython")
    cells = """import torch, hookboard; from torch import nn
net, y = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), torch.arange(8) % 3
step = lambda batch: nn.functional.cross_entropy(net(batch), y)
hookboard.audit(net, torch.randn(8, 4), step)
"""
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--colors=NoColor", "--no-banner"]
    done = subprocess.run(command, input=cells, capture_output=True, text=True, timeout=120)
    assert "cross_entropy at In [3]:1 expects logits" in done.stdout


def test_a_copy_of_a_monitor_shows_its_call_alone(sick):
    for copied in (copy.deepcopy(sick), pickle.loads(pickle.dumps(sick))):
        assert copied._repr_html_() == "<pre>HealthMonitor(every_n_steps=1)</pre>"


def test_a_printed_verdict_is_a_sentence(sick):
    verdict = sick.verdicts[0]
    assert str(verdict).startswith(f"{verdict.title}: ")
    assert ". Try: " in str(verdict)
