import pytest
from board import logs, runs


@pytest.fixture(scope="session")
def log_directory(tmp_path_factory):
    """All runs of runs.py."""
    folder = tmp_path_factory.mktemp("board")
    for name, events in runs.RUNS.items():
        logs.write(folder / name, events)
    return folder


@pytest.fixture(scope="session")
def slow_board(log_directory):
    with logs.slow(log_directory) as board:
        yield board


@pytest.fixture(scope="session")
def fast_board(log_directory):
    with logs.fast(log_directory, len(runs.RUNS)) as board:
        yield board


@pytest.fixture(params=["slow", "fast"])
def board(request):
    """The plugin on the log directory, by each of TensorBoard's loaders."""
    return request.getfixturevalue(f"{request.param}_board")
