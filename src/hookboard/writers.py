"""From readings to a Lightning logger, which is the only thing that each function here knows."""

import functools
from dataclasses import dataclass, field

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from torch.utils.tensorboard import SummaryWriter

from hookboard.recorder import Reading


@dataclass(frozen=True)
class Entry:
    """Everything that one callback logs at one step.

    Args:
        step: where on the logger's step axis.
        scalars: tag to value.
        histograms: tag to the reading that has the histogram.
    """

    step: int
    scalars: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Reading] = field(default_factory=dict)


@functools.singledispatch
def write(logger: Logger, entry: Entry) -> list[str]:
    """Write an entry to a logger.

    A logger that nothing better is registered for gets the scalars through `log_metrics`.

    Returns:
        What this kind of logger cannot take, in words; empty if it took everything.
    """
    if isinstance(getattr(logger, "experiment", None), SummaryWriter):
        return _write_to_tensorboard(logger, entry)  # type: ignore[arg-type]  # pytorch_lightning's has the same
    logger.log_metrics(entry.scalars, entry.step)
    return ["histograms"] if entry.histograms else []


@write.register
def _write_to_tensorboard(logger: TensorBoardLogger, entry: Entry) -> list[str]:
    # One event for the whole step: an event for each value costs some 20 times as much and fills the writer's
    # queue, which then makes training wait.
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in entry.scalars.items()]
    values += [Summary.Value(tag=tag, histo=_proto(reading)) for tag, reading in entry.histograms.items()]
    logger.experiment._get_file_writer().add_summary(Summary(value=values), entry.step)
    return []


def _proto(reading: Reading) -> HistogramProto:
    moments, histogram = reading.moments, reading.histogram
    assert histogram is not None
    return HistogramProto(
        min=moments.min,
        max=moments.max,
        num=moments.count,
        sum=moments.count * moments.mean,
        sum_squares=moments.m2 + moments.count * moments.mean**2,
        bucket_limit=histogram.edges[1:],
        bucket=histogram.counts,
    )
