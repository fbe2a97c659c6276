"""Layers that torch runs as one fused operation, unless a module in them has a hook.

In evaluation `nn.TransformerEncoderLayer` calls none of the modules inside it. One fused operation does their work; its
result differs in the last bits, and is NaN for a fully masked row. torch takes this path only if no module inside has a
forward hook or forward pre-hook, so any hook there would change the run.
"""

from torch import nn

from hookboard.base.torch_private import forward_hooks_of, forward_pre_hooks_of, modules_in, runs_compiled

FUSED = (nn.TransformerEncoderLayer,)
"""The modules of torch 2.6 to 2.14 that compute something else if there are hooks."""


def fused_layers(model: nn.Module) -> list[list[nn.Module]]:
    """Return, for each layer in a model that torch may run as one operation, the layer and all modules inside it.

    Layers that torch.compile runs are left out: a graph shows tensors only through hooks.

    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)
    >>> [type(module).__name__ for module in fused_layers(encoder)[1][:3]]
    ['TransformerEncoderLayer', 'MultiheadAttention', 'NonDynamicallyQuantizableLinear']
    """
    layers = [module for module in modules_in(model).values() if isinstance(module, FUSED)]
    if not layers:
        return []
    compiled = {
        id(part)
        for module in modules_in(model).values()
        if runs_compiled(module)
        for part in modules_in(module).values()
    }
    return [list(modules_in(layer).values()) for layer in layers if id(layer) not in compiled]


def unhooked(layers: list[list[nn.Module]]) -> set[int]:
    """Return the `id` of each module in the layers that have no hook at all: torch may run these as one operation."""
    found: set[int] = set()
    for modules in layers:
        if not any(forward_hooks_of(module) or forward_pre_hooks_of(module) for module in modules):
            found.update(map(id, modules))
    return found
