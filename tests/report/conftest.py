import pytest
from board import runs
from board.conftest import chromium, page_logs, values  # noqa: F401 - fixtures
from board.logs import scalars, write
from board.sick_logs import STEPS, write_foreign, write_run


@pytest.fixture(scope="session")
def logs(tmp_path_factory):
    """A sick run, one with hostile names, one that HealthMonitor did not watch, and two folders that are no runs."""
    folder = tmp_path_factory.mktemp("report") / "logs"
    write_run(folder / "sick")
    write(folder / "sick", [scalars(step, {"train/loss": 2.0 - step / 118, "val_loss": 9.0}) for step in STEPS])
    write_foreign(folder / "zoo", runs.NASTY)
    write_run(folder / "a_loggers", is_judged=False)
    write(folder / "theirs", runs.RUNS["theirs"])
    (folder / "empty").mkdir()
    return folder
