"""`KernelLogger`: logs pictures of the kernels of convolutions."""

from collections.abc import Sequence

from torch import Tensor, nn

from hookboard.base.messages import inform, listed
from hookboard.base.ranks import whole
from hookboard.base.torch_private import parameters_of
from hookboard.callbacks.pictures import PictureLogger, PictureState
from hookboard.images.feature_maps import CONVOLUTIONS
from hookboard.images.kernels import kernel_picture, selected_kernels
from hookboard.images.picture import Picture
from hookboard.loops.callback import Selection
from hookboard.loops.loop import Loop
from hookboard.model.selection import NothingToSelectError, check_selection, select


class KernelLogger(PictureLogger):
    """Logs pictures of convolution kernels, and of how they have changed since the fit started.

    Kernels with three input channels are drawn in colour, as red, green and blue. For others each row is a kernel and
    each column one of its input channels. Grey is 0. Pruned and parametrized convolutions are left out. Tags are
    `kernels/<module>`.

    Args:
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default:
            every convolution whose kernels are larger than one pixel, or, with `types`, every module of those types.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, and a leading `!` excludes.
        kernels: The largest number of kernels to show of a module, starting with the first; in colour, `kernels` times
            `channels`.
        channels: The largest number of channels to show. Here: the first input channels of each kernel.
        size: The longest side of a tile, in pixels. Here, a kernel is enlarged by an integer factor.
        every_n_steps: Optimizer steps between measurements, 1 or more. Default: 20 times the Trainer's
            `log_every_n_steps`.

    Raises:
        ValueError: At construction: a number below 1. At fit start: a pattern or type that matches no module of the
            model, or only modules that are not convolutions.

    Examples:
        >>> KernelLogger("backbone.conv1").modules
        'backbone.conv1'
    """

    kind = "kernels"

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        kernels: int = 8,
        channels: int = 8,
        size: int = 36,
        every_n_steps: int | None = None,
    ) -> None:
        super().__init__("train", 0, every_n_steps, kernels=kernels, channels=channels, size=size)
        check_selection(modules, types)
        self.modules = modules
        self.types = types
        self.kernels = kernels
        self.channels = channels
        self.size = size

    def _select(self, model: nn.Module) -> Selection:
        found = {n: m for n, m in select(model, self.modules, self.types).items() if isinstance(m, CONVOLUTIONS)}
        if self.modules is None and self.types is None:
            found = {name: module for name, module in found.items() if max(module.kernel_size) > 1}
            if not found:
                raise NothingToSelectError("the model has no convolution with kernels larger than one pixel")
        if not found:
            raise ValueError(f"modules={self.modules!r}, types={self.types!r} select no convolution.")
        computed = [name for name, module in found.items() if "weight" not in parameters_of(module)]
        if computed:
            inform(f"{self._name} leaves out {listed(computed)}: their weights are pruned or parametrized.")
        return Selection({name: module for name, module in found.items() if name not in computed})

    def _begin_training(self, loop: Loop, state: PictureState) -> None:
        """Keep a copy of the kernels that the fit starts with."""
        for module, weight in self._weights(state).values():
            state.start[module] = self._part(weight)

    def _weights(self, state: PictureState) -> dict[str, tuple[nn.Module, Tensor]]:
        """Return each module with its weight, by name; without those that were pruned since the fit began."""
        own = {name: (module, parameters_of(module).get("weight")) for name, module in state.selection.modules.items()}
        return {name: (module, weight.detach()) for name, (module, weight) in own.items() if weight is not None}

    def _pictures(self, loop: Loop, state: PictureState) -> dict[str, Picture]:
        pictures = {}
        for name, (module, weight) in self._weights(state).items():
            now = self._part(weight)
            start = state.start.setdefault(module, now)  # a module that was added during the fit starts here
            pictures[self._tag(name)] = kernel_picture(now, start, name, weight.shape, size=self.size)
        return pictures

    def _part(self, weight: Tensor) -> Tensor:
        """Return the first kernels and channels of a weight. A sharded one is gathered: every rank must call this."""
        return selected_kernels(whole(weight), kernels=self.kernels, channels=self.channels)
