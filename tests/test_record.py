"""The record: what is written is what is read."""

import json
import math
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest

from hookboard.base.records import VERSION, HealthRecord, LayerFacts, LayersRecord, health_record, layers_record

LAYERS = LayersRecord(
    "ActivationLogger",
    50,
    (
        LayerFacts("net.0", ("torch.nn.modules.linear.Linear",), (16, 4), {"net.0.weight": (4, 8), "net.0.bias": (4,)}),
        LayerFacts("<img src=x onerror=alert(1)>"),
    ),
)
HEALTH = HealthRecord(
    50,
    "1 alarm in 2 layers.",
    ({"severity": "alarm", "rule": "dead_units", "module": "net.0", "since": 1, "until": None},),
    ("net.0", "net.1"),
    (0, 50, 100),
    {"activation_rms": np.array([[1, np.nan, np.inf], [1e-30, 3.4e38, 0]], np.float32)},
)
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error)


def spoiled(record, **fields):
    """The strings of a record with other fields."""
    first, *columns = record.strings()
    return [json.dumps(json.loads(first) | fields).encode(), *columns]


def test_a_record_is_read_as_it_was_written():
    assert layers_record(LAYERS.strings()) == LAYERS
    found = health_record(HEALTH.strings())
    for field in ("headline", "verdicts", "layers", "steps"):
        assert getattr(found, field) == getattr(HEALTH, field)
    np.testing.assert_array_equal(found.values["activation_rms"], HEALTH.values["activation_rms"])


@pytest.mark.parametrize(
    ("cards", "read"),
    [
        ({"cards": [{"alike": [1], "effects": [[0]]}]}, ({"alike": [1], "effects": [[0]]},)),
        ({}, ({"alike": [0], "effects": []}, {"alike": [1], "effects": []})),
    ],
    ids=["as written", "of an older version"],
)
def test_each_verdict_of_a_record_is_on_one_card(cards, read):
    of_two = replace(HEALTH, verdicts=HEALTH.verdicts * 2)
    assert health_record(spoiled(of_two, **cards)).cards == read


def test_a_record_of_an_older_version_does_not_say_what_is_frozen():
    first, *columns = LAYERS.strings()
    fields = json.loads(first)
    for layer in fields["layers"]:
        del layer["frozen"]
    assert [layer.frozen for layer in layers_record([json.dumps(fields).encode(), *columns]).layers] == [(), ()]


@pytest.mark.parametrize("read", [layers_record, health_record])
def test_a_record_of_a_later_version_says_that_a_newer_hookboard_wrote_it(read):
    given = json.dumps({"version": VERSION + 1}).encode()
    with pytest.raises(ValueError, match="written by a newer hookboard"):
        read([given])


@pytest.mark.parametrize("read", [layers_record, health_record])
@pytest.mark.parametrize(
    "first", [None, b"", b"{}", b"[1]", b'{"version": 1}', b'{"version": "x"}', b"\xff", b"[" * 200_000]
)
def test_what_is_no_record_is_an_error(read, first):
    with pytest.raises(DAMAGED):
        read([] if first is None else [first])


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": [0, 50, math.inf]},
        {"steps": [0, 50, 2**63]},
        {"every_n_steps": math.inf},
        {"every_n_steps": 2**63},
        {"layers": 3},
        *({"cards": [{"alike": alike, "effects": []}]} for alike in ([], [0, 0], [0, 1], [-1], ["x"])),
    ],
)
def test_a_record_of_health_with_spoiled_fields_is_an_error(fields):
    with pytest.raises(DAMAGED):
        health_record(spoiled(HEALTH, **fields))


@pytest.mark.parametrize("output", [[math.inf], ["x"], 3, [10**4000]])
def test_a_record_of_layers_with_a_spoiled_shape_is_an_error(output):
    layer = {"name": "net.0", "types": [], "output": output, "parameters": {}}
    with pytest.raises(DAMAGED):
        layers_record(spoiled(LAYERS, layers=[layer]))


def peak_of_damaged(strings):
    """The most memory that is taken while a record of health is refused, in bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(DAMAGED):
            health_record(strings)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_of_spoiled_columns_no_more_is_unpacked_than_there_is_room_for():
    first, column = HEALTH.strings()
    assert peak_of_damaged([first, zlib.compress(bytes(200 << 20))]) < 1 << 20
    assert peak_of_damaged([first, column[: len(column) // 2]]) < 1 << 20


@pytest.mark.parametrize(("layers", "steps", "quantities"), [(8000, 6500, 4), (16_000, 256, 60)])
def test_a_record_that_claims_far_more_than_it_holds_is_an_error_at_little_cost(layers, steps, quantities):
    fields = {"layers": [f"net.{i}" for i in range(layers)], "steps": list(range(steps))}
    first, *_ = spoiled(HEALTH, **fields, values=[f"quantity_{i}" for i in range(quantities)])
    strings = [first, *(quantities * [zlib.compress(bytes(4 * layers * steps), 9)])]
    assert peak_of_damaged(strings) < 32 * sum(map(len, strings))
    with pytest.raises(ValueError, match="its values would take"):
        health_record(strings)


def test_a_record_of_many_layers_most_of_which_never_ran_is_read():
    values = np.full((8000, 256), np.nan, np.float32)
    values[:200] = np.random.default_rng(0).lognormal(size=(200, 256))
    names = tuple(f"model.layers.{i // 512}.mlp.experts.{i % 512}.gate" for i in range(8000))
    record = HealthRecord(1, "", (), names, tuple(range(256)), dict.fromkeys("abcdefg", values))
    np.testing.assert_array_equal(health_record(record.strings()).values["g"], values)
