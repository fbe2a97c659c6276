import pytest

from hookboard.health import judge


@pytest.fixture
def at_every_look(monkeypatch):
    """Rules are asked at every look, as they are where looks lie some steps apart."""
    monkeypatch.setattr(judge, "STEPS_BETWEEN_ASKING", (1,))
