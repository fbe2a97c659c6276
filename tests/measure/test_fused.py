"""Taps on layers that torch runs as one operation unless a module in them has a hook."""

import torch
from toys import encoder, hooked, sequences

from hookboard import capture
from hookboard.measure.taps import Taps


def shown(module, **options):
    """What taps see of a call of the module, by name."""
    seen = {}
    modules = {name: part for name, part in module.named_modules() if name}

    def opened(site):
        return lambda tensor: seen.setdefault((site.name, site.role), tensor.detach().clone())

    taps = Taps(modules, ["input", "output"], opened, model=module, **options)
    taps.attach()
    taps.active = True
    return taps, seen


def test_in_evaluation_the_layer_stays_one_operation_and_its_modules_are_named():
    net, x = encoder().eval(), sequences(3)[0]
    with torch.no_grad():
        bare = net(x)
        taps, seen = shown(net)
        assert torch.equal(net(x), bare)
    assert seen == {}
    for name in ("layers.0", "layers.0.linear1"):
        assert "an nn.TransformerEncoderLayer, and all inside it, as one operation" in taps.why_silent(name, "output")
    taps.detach()


def test_an_idle_hook_is_not_on_the_layer():
    net = encoder()
    taps, _ = shown(net)
    assert "layers.0.linear1" in hooked(net)
    taps.active = False
    assert [name for name in hooked(net) if name != "layers"] == []
    taps.detach()


def test_capture_shows_every_module_though_torch_would_call_none():
    net, x = encoder().eval(), sequences(3)[0]
    with torch.no_grad(), capture(net) as seen:
        net(x)
    assert seen["layers.0.linear1"].output.shape == (3, 5, 16)
