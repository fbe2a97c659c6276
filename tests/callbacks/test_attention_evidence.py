"""The numbers of what `activation_scale` says of attention, each against the full matrix in float64."""

from attending import Predicts, counting, heads_of, language_model, recorded_calls
from callbacks.course import shortened
from recorded import numbers
from toys import fit

from hookboard import HealthMonitor

EVERY, STEPS = 4, 80


def said_of(monkeypatch, net, rate, module):
    """The verdicts by layer, and the numbers of the heads of one layer at each look."""
    calls = recorded_calls(monkeypatch)
    monitor, layer = HealthMonitor(every_n_steps=EVERY, audit=False), int(module.split(".")[1]) - 1
    fit(None, Predicts(net, rate), counting(STEPS), monitor)
    looks = [0, *range(EVERY - 1, STEPS, EVERY)]
    heads = [heads_of(calls[2 * step : 2 * step + 2])[layer] for step in looks]
    found = {one.module: one for one in monitor.verdicts if one.rule == "activation_scale"}
    return found, heads


def test_the_largest_logit_and_the_entropy_then_and_now(monkeypatch):
    found, heads = said_of(monkeypatch, language_model(), 0.3, "net.1.attention")
    assert found.keys() == {"net.1.attention", "net.2.attention"}
    assert all("QK norm" in one.advice or one.follows_from == ("update_too_large", "") for one in found.values())
    before, now, head, entropy_before, entropy = numbers(
        ("largest attention logit rose from # at the first measurement to # in head #, whose entropy fell from # to #"),
        found["net.1.attention"].evidence,
    )
    head = int(head)
    (first_logits, first_entropies), last = heads[0], heads[-1]
    assert before == shortened(first_logits[head].max(), 3)
    assert entropy_before == shortened(first_entropies[head].mean(), 2)
    assert head == int(last[0].amax(1).argmax())
    assert now == shortened(last[0][head].max(), 3)
    assert entropy == shortened(last[1][head].mean(), 2)


def test_heads_that_all_look_at_one_key_from_the_start(monkeypatch):
    net = language_model()
    net[1].attention.qkv.weight.data[:32] *= 100
    found, heads = said_of(monkeypatch, net, 1e-6, "net.1.attention")
    count, entropy, largest = numbers(
        "each of its # heads attends to a single key: the entropy of its attention is at most #, with logits up to #",
        found["net.1.attention"].evidence,
    )
    assert count == 2
    assert any(entropy == shortened(entropies.mean(1).max(), 2) for _, entropies in heads)
    assert any(largest == shortened(logits.max(), 3) for logits, _ in heads)
