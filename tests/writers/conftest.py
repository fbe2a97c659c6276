"""What the tests of several files here need."""

import pytest
from lightning.pytorch.loggers import TensorBoardLogger


@pytest.fixture
def tensorboard(tmp_path):
    logger = TensorBoardLogger(tmp_path, name=None, version="")
    yield logger
    logger.finalize("success")
