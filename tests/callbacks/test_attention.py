"""What is measured inside `scaled_dot_product_attention`, at due steps alone, and what HealthMonitor says of it."""

from contextlib import nullcontext

import pytest
from attending import Predicts, counting, heads_of, language_model, recorded_calls
from callbacks.heard import warnings_of
from torch import nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from toys import fit, scalars

from hookboard import ActivationLogger, HealthMonitor
from hookboard.measure import attention
from hookboard.measure.row import FIELDS

BOTH = ["attention_logit", "attention_entropy"]
NAMES = ["net.1.attention", "net.2.attention"]
COLUMN = {name: at for at, name in enumerate(FIELDS)}


def logger(**options):
    return ActivationLogger(**{"roles": BOTH, "statistics": ["max", "min", "mean"], "every_n_steps": 1, **options})


@pytest.fixture
def calls(monkeypatch):
    return recorded_calls(monkeypatch)


def test_what_is_logged_is_that_of_the_full_matrix(tmp_path, calls):
    fit(tmp_path, Predicts(language_model()), counting(3), logger())
    logged = scalars(tmp_path)
    for step in range(3):
        of_layers = heads_of(calls[2 * step : 2 * step + 2])
        for name, each in zip(NAMES, of_layers, strict=True):
            for role, values in zip(BOTH, each, strict=True):
                for statistic in ("max", "min", "mean"):
                    value = logged[f"{role}_{statistic}/{name}"][step]
                    assert value == pytest.approx(float(getattr(values, statistic)()), rel=1e-6)


def test_each_head_has_a_row_over_all_micro_batches(calls):
    monitor = HealthMonitor(every_n_steps=1, audit=False)
    fit(None, Predicts(language_model()), counting(2), monitor, accumulate_grad_batches=2)
    found = {(r.site.name, r.site.role): r.channels for r in monitor.readings if r.site.role in BOTH}
    for name, (logits, entropies) in zip(NAMES, heads_of(calls), strict=True):
        largest, entropy = found[name, BOTH[0]], found[name, BOTH[1]]
        assert largest[:, COLUMN["max"]] == pytest.approx(logits.amax(1).numpy(), rel=1e-6)
        assert entropy[:, COLUMN["mean"]] == pytest.approx(entropies.mean(1).numpy(), rel=1e-6)
        assert largest[:, COLUMN["count"]].tolist() == [logits.shape[1]] * 2


@pytest.mark.parametrize("way", ["reentrant", "not reentrant"])
def test_what_a_checkpoint_recomputes_is_not_counted_again(tmp_path, way):
    watching = logger()
    fit(tmp_path, Predicts(language_model(recomputes=way)), counting(1), watching)
    counts = {reading.site.role: reading.moments.count for reading in watching.readings}
    # Two heads; the first query has no entropy.
    assert counts == {"attention_logit": 2 * 12, "attention_entropy": 2 * 11}
    assert len(watching.readings) == 4


def test_off_due_steps_torch_calls_its_own_function(tmp_path, calls):
    fit(tmp_path, Predicts(language_model()), counting(6), logger(every_n_steps=3))
    assert [is_watched for *_, is_watched in calls[::2]] == [False, False, True] * 2


def test_torch_has_its_own_function_back_after_an_error(tmp_path):
    real = functional.scaled_dot_product_attention
    model = Predicts(language_model())
    model.net[4].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, model, counting(1), logger())
    assert functional.scaled_dot_product_attention is real


def test_what_others_put_in_its_place_in_a_due_step_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(functional, "scaled_dot_product_attention", functional.scaled_dot_product_attention)
    model = Predicts(language_model())

    def replace(*_):
        now = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = model.theirs = lambda *args, **options: now(*args, **options)

    model.net[1].register_forward_pre_hook(replace)
    with pytest.warns(UserWarning, match="no call to scaled_dot_product_attention was seen"):
        fit(tmp_path, model, counting(1), logger())
    assert functional.scaled_dot_product_attention is model.theirs


class Lowered(nn.Module):
    """Attention with a mask of torch whose class asks whether it was torch's present function that was called."""

    def forward(self, x):
        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        bias = causal_lower_right(q.shape[-2], q.shape[-2])
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=bias).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("precision", "is_lowered"), [("32-true", False), ("bf16-mixed", False), ("32-true", True)])
def test_the_training_is_the_same_bit_for_bit(tmp_path, precision, is_lowered):
    def trained(*watching):
        net = language_model()
        if is_lowered:
            net[1].attention = Lowered()
        model = Predicts(net)
        fit(tmp_path, model, counting(4), *watching, precision=precision)
        return model.losses, [parameter.tolist() for parameter in model.parameters()]

    assert trained(logger(), HealthMonitor(every_n_steps=1)) == trained()


@pytest.mark.compiles
def test_in_a_compiled_graph_it_is_not_seen_and_breaks_nothing(tmp_path):
    model = Predicts(language_model())
    model.net.compile(backend="aot_eager", fullgraph=True)
    (said,) = warnings_of(lambda: fit(tmp_path, model, counting(2), logger(), ActivationLogger(every_n_steps=1)))
    assert "the model: attention_logit: no call to scaled_dot_product_attention was seen" in said


def test_a_module_that_is_not_selected_shows_nothing(tmp_path):
    for modules, names in {"net.1.attention.qkv": NAMES[:1], "net.2": NAMES[1:], "net.4": []}.items():
        watching = logger(modules=modules)
        with pytest.warns(UserWarning, match="scaled_dot_product") if not names else nullcontext():
            fit(tmp_path, Predicts(language_model()), counting(1), watching)
        assert list(dict.fromkeys(reading.site.name for reading in watching.readings)) == names


def test_a_fault_of_ours_is_one_warning(monkeypatch):
    def fails(*args, **options):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(attention, "attention_numbers", fails)
    monitor, model = HealthMonitor(every_n_steps=1), Predicts(language_model())
    said = warnings_of(lambda: fit(None, model, counting(4), monitor))
    assert sum("no such luck" in text for text in said) == 2  # one for each layer
    assert len(model.losses) == 4


@pytest.mark.parametrize(("is_normalized", "rate"), [(False, 3e-3), (True, 0.01)], ids=["lower rate", "QK norm"])
def test_of_logits_that_stay_small_nothing_is_said(is_normalized, rate):
    monitor = HealthMonitor(every_n_steps=4)
    fit(None, Predicts(language_model(is_normalized), rate), counting(80), monitor)
    assert not monitor.verdicts
