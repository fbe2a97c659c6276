"""Where a person finds what has been written, in one line for each logger."""

import functools

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger


@functools.singledispatch
def place_of(logger: Logger) -> str:
    """Return the line that says where one logger's output is found; "" if unknown."""
    return str(getattr(logger, "log_dir", None) or "")


@place_of.register
def _of_tensorboard(logger: TensorBoardLogger) -> str:
    return f"tensorboard --logdir {logger.log_dir} (tab Hookboard)"


@place_of.register
def _of_csv(logger: CSVLogger) -> str:
    return f"{logger.log_dir} (health_verdict.md, health_*.png)"


@place_of.register
def _of_wandb(logger: WandbLogger) -> str:
    run = logger.experiment
    return f"{getattr(run, 'url', None) or getattr(run, 'dir', '')} (health)"


@place_of.register
def _of_mlflow(logger: MLFlowLogger) -> str:
    return f"MLflow run {logger.run_id} (health/verdict.md among the artifacts)"
