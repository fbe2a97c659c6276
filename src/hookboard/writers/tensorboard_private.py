"""Everything that needs private names of torch's writer to TensorBoard. No other file uses them."""

from collections.abc import Callable
from typing import Any

from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.writer import FileWriter


def file_writer_of(writer: SummaryWriter) -> FileWriter:
    """The writer of whole events to the file; a new one if the old one was closed."""
    file_writer: FileWriter = writer._get_file_writer()
    return file_writer


def exchange_record_writer(writer: FileWriter, old: type[Any], new: Callable[[Any], Any]) -> None:
    """Have the thread that writes the file use another writer of records.

    Args:
        writer: the writer of events.
        old: the class of the one to replace; one of another class stays, so that a second call does nothing.
        new: makes the other one from the file.
    """
    thread: Any = getattr(getattr(writer.event_writer, "_async_writer", None), "_worker", None)
    records: Any = getattr(thread, "_record_writer", None)
    if type(records) is old and hasattr(records, "_writer"):
        thread._record_writer = new(records._writer)


def write_bytes(writer: FileWriter, event: bytes) -> bool:
    """Have an event written that is serialized already; returns whether the writer takes such.

    Args:
        writer: the writer of events.
        event: the serialized event.
    """
    events = writer.event_writer
    write = getattr(getattr(events, "_async_writer", None), "write", None)
    # One with a method of its own for events may do something else with them.
    if write is None or type(events).add_event is not EventFileWriter.add_event or "add_event" in vars(events):
        return False
    write(event)
    return True
