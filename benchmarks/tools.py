"""Tools that watch a network, each as a Lightning callback that does on every step what its manual shows.

A tool is imported when it is first attached, so that this module imports without any of them. `TOOLS` lists them.
"""

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from hookboard import ActivationLogger, GradientLogger


@dataclass(frozen=True)
class Tool:
    """One row of the comparison.

    Args:
        make: its callbacks.
        measures: what it measures, in words.
        package: the name of its distribution; "" if it has none.
    """

    make: Callable[[], list[Callback]]
    measures: str
    package: str = ""


def leaves(module: nn.Module) -> dict[str, nn.Module]:
    return {name: each for name, each in module.named_modules() if not list(each.children())}


class HooksByHand(Callback):
    """The usual answer: six statistics of every output and its gradient, `.item()` and `add_scalar` each."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.handles = [
            module.register_forward_hook(self.hook(name, trainer)) for name, module in leaves(pl_module).items()
        ]

    def hook(self, name: str, trainer: Trainer) -> Callable[..., None]:
        writer = trainer.loggers[0].experiment

        def log(kind: str, tensor: Tensor) -> None:
            values = {
                "mean": tensor.mean(),
                "std": tensor.std(),
                "min": tensor.min(),
                "max": tensor.max(),
                "norm": tensor.norm(),
                "zero_fraction": (tensor == 0).float().mean(),
            }
            for statistic, value in values.items():
                writer.add_scalar(f"{kind}_{statistic}/{name}", value.item(), trainer.global_step)

        def forward(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            log("activation", output.detach())
            if output.requires_grad:
                output.register_hook(lambda grad: log("gradient", grad))

        return forward

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for handle in self.handles:
            handle.remove()


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

        self.stats = ActivationStats(modules=list(leaves(pl_module).values()), with_hist=True)
        self.stats.before_fit()

    def on_train_batch_end(self, *args: Any) -> None:
        # What its after_batch does, which asks a fastai Learner whether this is training.
        self.stats.stats.append(self.stats.hooks.stored)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.stats.after_fit()


class ComposerActivationMonitor(Callback):
    """`ActivationMonitor` with `interval="1ba"`: four statistics of inputs and outputs of all modules.

    It takes a batched tensor for a tuple of tensors, and measures each sample by itself.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        from composer.callbacks import ActivationMonitor

        self.monitor = ActivationMonitor(interval="1ba")
        self.monitor.create_module_names(pl_module)
        self.logger = SimpleNamespace(destinations=[], log_metrics=self.log_metrics)
        self.trainer = trainer

    def log_metrics(self, metrics: dict[str, float]) -> None:
        for logger in self.trainer.loggers:
            logger.log_metrics(metrics, self.trainer.global_step)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        # What its before_forward does, which asks a composer State for the step.
        self.monitor.register_forward_hook(pl_module, self.logger, trainer.global_step)

    def on_before_backward(self, *args: Any) -> None:
        self.monitor.remove_forward_hooks()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.monitor.remove_forward_hooks()


class TransformersDebug(Callback):
    """`DebugUnderflowOverflow`: smallest and largest magnitude of what modules take and give and of their weights."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        from transformers.debug_utils import DebugUnderflowOverflow

        handles = self.handles = []

        class Removable(DebugUnderflowOverflow):
            """It has no method that removes its hooks."""

            def _register_forward_hook(self, module: nn.Module) -> None:
                handles.append(module.register_forward_hook(self.forward_hook))

        Removable(pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for handle in self.handles:
            handle.remove()


SIX = ("mean", "std", "min", "max", "l2", "zero_fraction")


def hookboard(histogram: bool) -> list[Callback]:
    return [logger(every_n_steps=1, histogram=histogram) for logger in (ActivationLogger, GradientLogger)]


def hookboard_outputs() -> list[Callback]:
    norms = GradientLogger(every_n_steps=1, roles="parameter_grad", statistics=["l2"])
    return [ActivationLogger(every_n_steps=1, statistics=SIX), norms]


def hookboard_output_histograms() -> list[Callback]:
    return [ActivationLogger(every_n_steps=1, statistics=["mean", "std", "zero_fraction"], histogram=True)]


TOOLS: dict[str, Tool] = {
    "hookboard": Tool(lambda: hookboard(histogram=False), "outputs and their gradients, 5 statistics", "hookboard"),
    "hookboard, outputs": Tool(
        hookboard_outputs, "outputs, 6 statistics; norm of each parameter's gradient", "hookboard"
    ),
    "hookboard, histograms": Tool(
        lambda: hookboard(histogram=True), "outputs and their gradients, 5 statistics and histogram", "hookboard"
    ),
    "hookboard, output histograms": Tool(
        hookboard_output_histograms, "outputs, 3 statistics and histogram", "hookboard"
    ),
    "hooks written by hand": Tool(
        lambda: [HooksByHand()], "outputs and their gradients, 6 statistics, `.item()` and `add_scalar` each"
    ),
    "torch-module-monitor": Tool(
        lambda: [TorchModuleMonitor()],
        "outputs, 6 statistics; norm of each parameter's gradient",
        "torch-module-monitor",
    ),
    "fastai ActivationStats": Tool(lambda: [FastaiActivationStats()], "outputs, 3 statistics and histogram", "fastai"),
    "wandb.watch": Tool(
        lambda: [WandbWatch()],
        "gradients of parameters, histogram (of parameters none: Lightning does not call `forward`)",
        "wandb",
    ),
    "transformers DebugUnderflowOverflow": Tool(
        lambda: [TransformersDebug()],
        "inputs and outputs of all modules, parameters: smallest and largest magnitude, any NaN or Inf; logs nothing",
        "transformers",
    ),
    "composer ActivationMonitor": Tool(
        lambda: [ComposerActivationMonitor()],
        "inputs and outputs of all modules, 4 statistics, of each sample by itself",
        "mosaicml",
    ),
}
