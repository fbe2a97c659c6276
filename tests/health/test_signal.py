"""Bounded activations at their ends, and gates that are shut."""

import dataclasses

import numpy as np
import pytest
from health.looks import reading, row
from health.runs import falling, findings, harmed, linear, noise, outputs, run_of, without_weights

from hookboard.health.rules.signal import SATURATED
from hookboard.measure.histogram import Histogram
from hookboard.model.layers import Layer

CHAIN = [
    linear("fc0"),
    without_weights("act0", "bounded", "Tanh"),
    linear("fc1"),
    without_weights("act1", "bounded", "Tanh"),
    linear("head", 3),
]


def bounded(name, share, type_="Tanh"):
    """A bounded activation with so large a share at its ends, seen in its histogram."""
    low = -1.0 if type_ == "Tanh" else 0.0
    half = (1 - low) / 2
    edges = np.array([low, low + 0.02 * half, 1 - 0.02 * half, 1.0])
    counts = np.array([50 * share, 100 - 100 * share, 50 * share])
    rows = [row(100, mean=(1 + low) / 2, deviation=half / 2, low=low, high=1.0) for _ in range(8)]
    return dataclasses.replace(outputs(name, rows), histogram=Histogram(edges, counts))


def chain(first, second):
    return [outputs("fc0", noise(8)), first, outputs("fc1", noise(8)), second, outputs("head", noise(3))]


@pytest.mark.parametrize(("share", "fires"), [(0.49, False), (0.51, True)])
def test_more_than_half_of_the_outputs_at_the_ends_are_saturated(share, fires):
    run = run_of(CHAIN, lambda n: chain(bounded("act0", 0.01), bounded("act1", share)))
    found = findings(SATURATED, run)
    assert [(finding.module, finding.severity) for finding in found] == ([("fc1", "note")] if fires else [])


def test_the_evidence_says_where_the_outputs_lie():
    run = run_of(CHAIN, lambda n: chain(bounded("act0", 0.01), bounded("act1", 0.9)))
    (finding,) = findings(SATURATED, run)
    assert finding.evidence == (
        "90% of the outputs of act1 (Tanh) are near the ends of its range of -1 to 1: from -1 to -0.98 or from "
        "0.98 to 1."
    )


@pytest.mark.parametrize(("losses", "severity"), [(falling, "note"), (harmed, "alarm")])
def test_it_is_an_alarm_where_the_loss_shows_harm(losses, severity):
    run = run_of(CHAIN, lambda n: chain(bounded("act0", 0.01), bounded("act1", 0.9)), losses=losses)
    assert [finding.severity for finding in findings(SATURATED, run)] == [severity]


def test_of_a_chain_of_saturated_layers_the_first_is_named():
    run = run_of(CHAIN, lambda n: chain(bounded("act0", 0.9), bounded("act1", 0.9)))
    assert [finding.module for finding in findings(SATURATED, run)] == ["fc0"]


def test_units_that_stay_at_one_end_are_saturated_without_a_histogram():
    rows = [row(100, mean=0.999, deviation=1e-4) for _ in range(5)] + [row(100, 0.0, 0.3) for _ in range(3)]
    run = run_of(CHAIN, lambda n: chain(bounded("act0", 0.01), outputs("act1", rows)))
    assert [finding.module for finding in findings(SATURATED, run)] == ["fc1"]


def test_a_sigmoid_that_is_sure_of_its_answer_is_healthy():
    layers = [linear("fc"), without_weights("act", "bounded", "Sigmoid")]
    read = [outputs("fc", noise(8)), bounded("act", 0.99, "Sigmoid")]
    assert not findings(SATURATED, run_of(layers, lambda n: read, losses=falling))
    assert findings(SATURATED, run_of(layers, lambda n: read, losses=harmed))


LSTM = Layer("lstm", "LSTM", "recurrent", ("lstm.bias_ih_l0",), shapes={"lstm.bias_ih_l0": (256,)})


def lstm(rms, bias=(0.0, 0.1)):
    mean, deviation = bias
    return [
        outputs("embedding", noise(8)),
        reading("lstm", "output", [row(100, 0.0, rms, low=-0.9, high=0.9)]),
        reading("lstm.bias_ih_l0", "parameter_before", [row(256, mean, deviation)]),
    ]


@pytest.mark.parametrize(
    ("rms", "bias", "fires"),
    [
        (0.1, (0.0, 0.1), False),
        (0.01, (0.0, 0.1), True),
        (0.1, (-1.25, 2.2), True),  # one gate in four at -5
        (0.1, (0.25, 0.4), False),  # the forget gate at 1
        (0.1, (0.0, 1.5), False),  # wide, and around 0
    ],
)
def test_an_lstm_with_shut_gates_is_found_at_its_output_or_at_its_biases(rms, bias, fires):
    layers = [linear("embedding", kind="embedding"), LSTM]
    assert bool(findings(SATURATED, run_of(layers, lambda n: lstm(rms, bias)))) is fires


def test_an_lstm_that_lets_nothing_through_is_an_alarm_by_itself():
    (finding,) = findings(SATURATED, run_of([linear("embedding", kind="embedding"), LSTM], lambda n: lstm(1e-5)))
    assert finding.severity == "alarm"


def test_large_inputs_do_not_shut_the_gates_of_an_lstm():
    read = [outputs("embedding", noise(8, scale=300.0)), *lstm(0.5)[1:]]
    assert not findings(SATURATED, run_of([linear("embedding", kind="embedding"), LSTM], lambda n: read))


def test_a_whole_chain_at_its_ends_from_the_start_is_an_alarm_by_itself():
    layers = [layer for i in range(3) for layer in (linear(f"fc{i}"), without_weights(f"act{i}", "bounded", "Tanh"))]
    layers.append(linear("head"))

    def seen(n, share):
        acts = [[outputs(f"fc{i}", noise(8)), bounded(f"act{i}", share)] for i in range(3)]
        return [*acts[0], *acts[1], *acts[2], outputs("head", noise(8))]

    def severities(share, first):
        run = run_of(layers, lambda n: seen(n, share if n else first))
        return [finding.severity for finding in findings(SATURATED, run)]

    assert severities(0.7, first=0.7) == ["alarm"]
    assert severities(0.56, first=0.56) == ["alarm"]
    assert severities(0.54, first=0.54) == ["note"]
    assert severities(0.7, first=0.1) == ["note"]  # it came with training


def test_an_lstm_whose_outputs_are_all_near_1_is_saturated():
    rows = [row(100, mean, 0.01, low=mean - 0.01, high=mean + 0.01) for mean in (0.985, -0.985)]
    run = run_of([LSTM], lambda n: [outputs("lstm", rows)])
    (finding,) = findings(SATURATED, run)
    assert finding.module == "lstm"
