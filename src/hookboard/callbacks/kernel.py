"""Pictures of what convolutions have learned."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from hookboard.callbacks.pictures import PictureLogger, Session
from hookboard.images.kernels import kernel_picture, part_shown
from hookboard.images.picture import Picture
from hookboard.ranks import whole
from hookboard.selection import select


class KernelLogger(PictureLogger):
    """Logs pictures of the kernels of convolutions, and beside them how they have changed since the fit started.

    Kernels that meet three channels are drawn in colour, as they meet an RGB picture. Of others each row is a kernel
    and each column one of its input channels. Grey is 0. Tags are `kernels/<module>`.

    Args:
        modules: Pattern or patterns over dotted module names, relative to the LightningModule. `*` stays within one
            name, `**` crosses dots, a leading `!` excludes, a leading `re:` is a regular expression. Left out: every
            convolution whose kernels are larger than one pixel, or, with `types`, every module of those types.
        types: Class names (`Conv2d`, `torch.nn.Conv2d`) or classes; subclasses count, a leading `!` excludes.
        kernels: How many kernels of a module, from its first, at most; in colour `kernels` times `channels`.
        channels: How many input channels of a kernel, from its first, at most.
        size: Pixels that a side of a kernel may take: it is enlarged by a whole factor.
        every_n_steps: One picture in this many optimizer steps. Left out: 20 times the Trainer's `log_every_n_steps`.

    Raises:
        ValueError: At construction: a number below 1. At fit start: a pattern or type that matches no module of the
            model, or a module that is no convolution.

    Example:
        >>> KernelLogger("backbone.conv1").modules
        'backbone.conv1'
    """

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        kernels: int = 8,
        channels: int = 8,
        size: int = 20,
        every_n_steps: int | None = None,
    ) -> None:
        super().__init__("train", 0, every_n_steps, kernels=kernels, channels=channels, size=size)
        self.modules = modules
        self.types = types
        self.kernels = kernels
        self.channels = channels
        self.size = size

    def _resolve(self, pl_module: LightningModule) -> "dict[str, _Watched]":
        found = {
            name: module
            for name, module in select(pl_module, self.modules, self.types).items()
            if isinstance(module, nn.modules.conv._ConvNd)
        }
        if self.modules is None and self.types is None:
            found = {name: module for name, module in found.items() if max(module.kernel_size) > 1}
        if not found:
            raise ValueError(
                f"KernelLogger(modules={self.modules!r}, types={self.types!r}) shows the kernels of convolutions, and "
                "there is none among these modules."
            )
        return {name: _Watched(module) for name, module in found.items()}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what the fit starts with: by now a checkpoint has been loaded."""
        if self._session is not None:
            with self._shielded("copying the first kernels"):
                for watched in self._session.watched.values():
                    watched.first = self._part(_weight(watched.module))

    def _part(self, weight: Tensor) -> Tensor:
        return part_shown(whole(weight), kernels=self.kernels, channels=self.channels)

    def _end(self, trainer: Trainer, session: Session) -> dict[str, Picture]:
        pictures = {}
        for name, watched in session.watched.items():
            weight = _weight(watched.module)
            picture = kernel_picture(self._part(weight), watched.first, name, weight.shape, size=self.size)
            pictures[f"kernels/{name}"] = picture
        return pictures


@dataclass
class _Watched:
    module: nn.Module
    first: Tensor | None = None


def _weight(module: nn.Module) -> Tensor:
    """The weight as it is now. A parametrization computes it, and some, as spectral norm, learn while they do."""
    parametrizations = getattr(module, "parametrizations", nn.Module())
    modes = [(part, part.training) for part in parametrizations.modules()]
    try:
        for part, _ in modes:
            part.training = False
        with torch.no_grad():
            weight = module.weight
            assert isinstance(weight, Tensor)
            return weight.detach()
    finally:
        for part, mode in modes:
            part.training = mode
