"""The events that are handed to TensorBoard's writer."""

import numpy as np
import pytest
import torch
from oracle import normal
from tensorboard.compat.proto.summary_pb2 import HistogramProto
from toys import scalars

from hookboard.measure.statistics import plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site
from hookboard.writers.entry import Entry
from hookboard.writers.tensorboard import quick_writer_of, write_to_tensorboard

VALUES = [0.0, -0.0, 0.1, -1e-46, 3.4028235e38, 3.4028236e38, 1e300, -1e300, np.inf, -np.inf, np.nan, 2.0**-149]


def given_to(tensorboard, entry, monkeypatch):
    """The only event that an entry gives to the writer."""
    given = []
    monkeypatch.setattr(quick_writer_of(tensorboard.experiment).event_writer, "add_event", given.append)
    write_to_tensorboard(tensorboard, entry)
    (event,) = given
    return event


def recorded(tensors, statistics="mean std", **options):
    table = Table(plan(statistics.split()), torch.device("cpu"), **options)
    for _ in range(2):
        for site, tensor in tensors.items():
            table.open(site)(tensor)
        yield table.send()()


@pytest.mark.parametrize("step", [0, 2**40, -1])
def test_scalars_are_written_as_float32_at_their_step(step, tensorboard, monkeypatch):
    given = {f"activation_std/net.{i}": value for i, value in enumerate(VALUES)}
    event = given_to(tensorboard, Entry(step, given), monkeypatch)
    with np.errstate(over="ignore"):
        expected = np.array(VALUES, np.float32)
    np.testing.assert_array_equal([value.simple_value for value in event.summary.value], expected)
    assert [value.tag for value in event.summary.value] == list(given)
    assert event.step == step


@pytest.mark.parametrize("tag", ["ä/été/层", "x" * 40_000])
def test_tags_of_any_length_and_script_are_read_back(tag, tensorboard, tmp_path):
    write_to_tensorboard(tensorboard, Entry(3, {tag: 1.0}))
    tensorboard.experiment.flush()
    assert [*scalars(tmp_path)] == [tag]


def test_a_histogram_is_the_one_that_protobuf_makes(tensorboard, monkeypatch):
    site = Site("net.0", "output")
    (readings, _) = recorded({site: torch.cat([normal(200), torch.tensor([40.0, torch.nan])])}, histogram=True)
    reading = readings[site]
    moments, drawn = reading.moments, reading.histogram
    expected = HistogramProto(
        min=moments.min,
        max=moments.max,
        num=moments.count,
        sum=moments.count * moments.mean,
        sum_squares=moments.square_sum,
        bucket_limit=drawn.edges[1:],
        bucket=drawn.counts,
    )
    event = given_to(tensorboard, Entry(3, histograms={"activations/net.0": reading}), monkeypatch)
    (value,) = event.summary.value
    assert (value.tag, value.histo) == ("activations/net.0", expected)


def test_numbers_pictures_and_records_are_one_event(tensorboard, monkeypatch):
    site = Site("net.0", "output")
    readings = next(recorded({site: normal(9)}, histogram=True))
    entry = Entry(7, readings.scalars(), readings.with_histogram())
    entry.records["hookboard/health"] = [b"one"]
    event = given_to(tensorboard, entry, monkeypatch)
    tags = ["activation_mean/net.0", "activation_std/net.0", "activations/net.0", "hookboard/health"]
    assert [value.tag for value in event.summary.value] == tags
    assert event.step == 7


def test_of_two_sites_with_one_tag_the_last_one_has_it():
    sites = {Site("a", "output", "b"): torch.zeros(1), Site("a/b", "output"): torch.ones(1)}
    assert next(recorded(sites, "mean")).scalars() == {"activation_mean/a/b": 1.0}
