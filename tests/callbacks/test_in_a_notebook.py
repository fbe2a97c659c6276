"""What a prompt and a notebook show of callbacks and verdicts."""

import base64
import copy
import io
import pickle
import re

import pytest
from PIL import Image
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, HealthMonitor, Intervention, Scale


def monitored(net=None, **options):
    monitor = HealthMonitor(every_n_steps=1, **options)
    fit(None, Toy(net or mlp()), batches(*[4] * 8), monitor)
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


def test_a_monitor_shows_its_verdicts_and_a_map_after_the_fit():
    net = mlp()
    net[0].bias.data.fill_(-100.0)
    monitor = monitored(net)
    shown = monitor._repr_html_()
    verdict = monitor.verdicts[0]
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


def test_names_of_layers_cannot_add_to_the_page():
    net = mlp()
    net.add_module("<script>alert(1)<\\script>", net[0].__class__(3, 3))
    monitor = monitored(net, rules=["activation_scale", "not_updated", "no_gradient"])
    assert "<script>" not in monitor._repr_html_()


def test_verdicts_are_shown_as_sentences():
    net = mlp()
    net[0].bias.data.fill_(-100.0)
    verdicts = monitored(net).verdicts
    assert repr(verdicts).splitlines() == [str(verdict) for verdict in verdicts]
    assert verdicts._repr_html_().count("<p>") == len(verdicts) > 0
    assert repr(HealthMonitor().verdicts) == "()"


def test_a_copy_of_a_monitor_shows_its_call_alone():
    monitor = monitored()
    for copied in (copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor))):
        assert copied._repr_html_() == "<pre>HealthMonitor(every_n_steps=1)</pre>"


def test_a_printed_verdict_is_a_sentence():
    net = mlp()
    net[0].bias.data.fill_(-100.0)
    verdict = monitored(net).verdicts[0]
    assert str(verdict).startswith(f"{verdict.title}: ")
    assert ". Try: " in str(verdict)
