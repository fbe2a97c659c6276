"""Taps on layers that torch runs as one operation unless a module in them has a hook."""

import copy
import pickle

import torch
from toys import encoder, hooked, sequences

from hookboard import capture
from hookboard.base.torch_private import Detour
from hookboard.measure import Taps


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


def test_the_output_of_the_layer_is_seen_and_the_modules_inside_are_named():
    net, x = encoder().eval(), sequences(3)[0]
    with torch.no_grad():
        bare = net(x)
        taps, seen = shown(net)
        assert torch.equal(net(x), bare)
    assert torch.equal(seen["layers.1", "output"], bare)
    assert {name for name, _ in seen} == {"layers.0", "layers.1"}
    assert "nn.TransformerEncoderLayer around it as one operation" in taps.why_silent("layers.0.linear1", "output")


def test_the_modules_inside_are_seen_where_torch_calls_them():
    net, x = encoder().eval(), sequences(3)[0]
    taps, seen = shown(net)
    net(x)  # with gradients
    assert ("layers.1.linear2", "input") in seen
    expected = net.layers[0].linear1(net.layers[0].norm1(x + net.layers[0].self_attn(x, x, x)[0]))
    assert torch.allclose(seen["layers.0.linear1", "output"], expected)
    taps.detach()


def test_two_taps_share_the_way_around_the_hooks():
    net, x = encoder().eval(), sequences(3)[0]
    one, seen_by_one = shown(net)
    other, seen_by_other = shown(net)
    with torch.no_grad():
        net(x)
    one.detach()
    seen_by_other.clear()
    with torch.no_grad():
        net(x)
    assert torch.equal(seen_by_one["layers.1", "output"], seen_by_other["layers.1", "output"])
    other.detach()
    assert not any("_compiled_call_impl" in vars(module) for module in net.modules())


def test_a_hook_of_somebody_else_is_seen_through_as_elsewhere():
    net, x = encoder().eval(), sequences(3)[0]
    net.layers[0].linear1.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    taps, seen = shown(net)
    with torch.no_grad():
        net(x)
    assert torch.equal(seen["layers.0.linear1", "input"], 2 * seen["layers.0.norm1", "output"])
    assert ("layers.1.linear1", "output") not in seen
    taps.detach()


def test_an_idle_hook_is_not_on_the_layer():
    net = encoder().eval()
    taps, _ = shown(net)
    taps.active = False
    assert [name for name in hooked(net) if name != "layers"] == []
    taps.detach()


def test_a_copy_of_a_watched_layer_is_not_watched():
    net, x = encoder().eval(), sequences(3)[0]
    taps, seen = shown(net)
    for twin in (copy.deepcopy(net), copy.copy(net.layers[0]), pickle.loads(pickle.dumps(net))):
        seen.clear()
        with torch.no_grad():
            twin(x)
        assert not any(isinstance(part._compiled_call_impl, Detour) for part in twin.modules() if part is twin)
    taps.detach()


def test_capture_shows_every_module_though_torch_would_call_none():
    net, x = encoder().eval(), sequences(3)[0]
    with torch.no_grad(), capture(net) as seen:
        net(x)
    assert seen["layers.0.linear1"].output.shape == (3, 5, 16)
