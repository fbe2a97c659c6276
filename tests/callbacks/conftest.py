import logging

import pytest


@pytest.fixture
def lines():
    """What hookboard says in the terminal."""
    said, log = [], logging.getLogger("lightning.pytorch")
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.args[0]) if record.msg == "hookboard: %s" else None
    log.addHandler(handler)
    yield said
    log.removeHandler(handler)
