"""Other tools that watch a network, each as a Lightning callback that does on every step what its manual shows.

A tool is imported when it is first attached, so that this module imports without any of them.
"""

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn


def leaves(module: nn.Module) -> list[nn.Module]:
    return [submodule for submodule in module.modules() if not list(submodule.children())]


class WandbWatch(Callback):
    """`wandb.watch`, histograms of the gradients of the parameters, into an offline run.

    It writes the histograms of the parameters from a forward hook on the watched module. Lightning calls
    `training_step` instead of `forward`, so these do not come, although `log="all"` asks for them.
    """

    run: Any = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.run is None:
            folder = tempfile.mkdtemp()
            # Registered before wandb registers the end of its run, hence called after it.
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            import wandb

            # Its sampling of the machine and capture of the console would go on during the turns of the others.
            settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
            self.run = wandb.init(mode="offline", dir=folder, settings=settings)
        # Without an index every call gives the histograms new names.
        self.run.watch(pl_module, log="all", log_freq=1, idx=0)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        # The hooks only collect: logging something commits the step.
        self.run.log({"trainer/global_step": trainer.global_step})

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.run.unwatch(pl_module)


class TorchModuleMonitor(Callback):
    """`ModuleMonitor`: six statistics of the output of every leaf module and the norm of every parameter's gradient."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        from torch_module_monitor import ModuleMonitor
        from torch_module_monitor.monitor import default_format_module_name_fn

        containers = (
            re.escape(default_format_module_name_fn(name))
            for name, module in pl_module.named_modules()
            if list(module.children())
        )
        # A monitor keeps its module for good, so each attachment takes a new one.
        self.monitor = ModuleMonitor(
            monitor_step_fn=lambda step: True, excluded_modules_regex=f"(?:{'|'.join(containers)})$"
        )
        self.monitor.set_module(pl_module)
        metrics: dict[str, Callable[[Tensor], Tensor]] = {
            "mean": lambda tensor: tensor.mean(),
            "std": lambda tensor: tensor.std(),
            "min": lambda tensor: tensor.min(),
            "max": lambda tensor: tensor.max(),
            "norm": lambda tensor: tensor.norm(),
            "zero_fraction": lambda tensor: (tensor == 0).float().mean(),
        }
        for name, metric in metrics.items():
            self.monitor.add_activation_metric(name, metric)
        self.monitor.add_gradient_metric("norm", lambda gradient: gradient.norm())

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self.monitor.begin_step(trainer.global_step)

    def on_before_optimizer_step(self, *args: Any) -> None:
        self.monitor.monitor_gradients()

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.monitor.end_step()
        for logger in trainer.loggers:
            logger.log_metrics(self.monitor.get_step_metrics(), trainer.global_step)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # It has no method that lets go of its module.
        self.monitor.activation_hooks.remove_all_hooks()


class FastaiActivationStats(Callback):
    """`ActivationStats`: mean, std, near-zero share and histogram of the output of every leaf module, in a list."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        from fastai.callback.hook import ActivationStats

        self.stats = ActivationStats(modules=leaves(pl_module), with_hist=True)
        self.stats.before_fit()

    def on_train_batch_end(self, *args: Any) -> None:
        # What its after_batch does, which asks a fastai Learner whether this is training.
        self.stats.stats.append(self.stats.hooks.stored)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.stats.after_fit()


PEERS: dict[str, tuple[str, Callable[[], Callback]]] = {
    "wandb.watch": ("wandb", WandbWatch),
    "torch-module-monitor": ("torch_module_monitor", TorchModuleMonitor),
    "fastai ActivationStats": ("fastai", FastaiActivationStats),
}
