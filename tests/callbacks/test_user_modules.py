"""Methods, hooks and copies of the user's modules are called and made as they are without our callbacks."""

import copy
import pickle
import traceback
import warnings

import pytest
import torch
from callbacks.user_program import IGNORED, Effects, assert_the_same_is_seen, counting, surely
from torch import nn

pytestmark = pytest.mark.filterwarnings(*IGNORED)

effect = Effects()

OVERRIDDEN = """
parameters named_parameters modules children named_children buffers named_buffers state_dict
load_state_dict get_parameter get_submodule get_buffer train eval zero_grad requires_grad_ apply to float
extra_repr __repr__ _get_name __dir__ __setattr__ __delattr__ __call__ forward __len__ __iter__
__getitem__ register_forward_hook register_forward_pre_hook register_full_backward_hook __reduce_ex__ _apply
add_module register_buffer __setstate__ _save_to_state_dict
"""


@effect
def a_module_has_methods_of_its_own(user):
    old, names = user.net, OVERRIDDEN.split()
    kind = counting(nn.Sequential, user, *names)
    inner = counting(nn.Linear, user, *[name for name in names if hasattr(nn.Linear, name)])(4, 6)
    user.net = kind(inner, kind(old[1], old[2]), *old[3:])


@effect
def modules_are_copied_judged_and_asked_by_methods_of_their_own(user):
    class Asked(type):
        def __instancecheck__(cls, instance):
            user.saw("instance")
            return super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass):
            user.saw("subclass")
            return super().__subclasscheck__(subclass)

    class Own(nn.Sequential, metaclass=Asked):
        def __bool__(self):
            user.saw("bool")
            return False

        def __contains__(self, item):
            user.saw("contains")
            return False

        def __deepcopy__(self, memo):
            user.saw("deepcopy")
            return self

        def __copy__(self):
            user.saw("copy")
            return self

        def __getstate__(self):
            user.saw("getstate")
            return self.__dict__

        def __getattr__(self, name):
            try:
                return nn.Module.__getattr__(self, name)
            except AttributeError:
                user.saw("asked for", name)
                raise

    user.net = Own(*user.net[:4], Own(user.net[4]))


NAMES = """
weight bias in_features out_features eps momentum num_heads head_dim embed_dim p dim kernel_size stride padding
running_mean num_experts top_k config dtype device loss logits vocab_size num_features affine hidden_size
"""


@effect
def a_module_has_properties_that_compute(user):
    def property_of(name):
        return property(lambda self: user.saw(name) or 1)

    kind = type("Computing", (nn.Sequential,), {name: property_of(name) for name in NAMES.split()})
    user.net = kind(*user.net[:4], kind(user.net[4]))


@effect
def a_list_of_modules_is_walked(user):
    class Walks(nn.Module):
        def __init__(self):
            super().__init__()
            names = ("__iter__", "__len__", "__getitem__")
            self.layers = counting(nn.ModuleList, user, *names)([nn.Linear(4, 4), nn.Linear(4, 4)])
            self.named = counting(nn.ModuleDict, user, *names, "keys", "items", "values")({"a": nn.Linear(4, 4)})
            self.weights = counting(nn.ParameterList, user, *names)([torch.ones(4)])
            self.scales = counting(nn.ParameterDict, user, *names, "keys", "items", "values")({"a": torch.ones(4)})

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.named["a"](x) * self.weights[0] * self.scales["a"]

    user.net.append(Walks())


@effect
def hooks_of_the_user_count(user):
    for layer in user.net:
        layer.register_forward_pre_hook(lambda *args: user.saw("before") and None)
        layer.register_forward_hook(lambda *args: user.saw("after") and None)
        layer.register_forward_hook(lambda *args, **kwargs: user.saw("named") and None, with_kwargs=True)
        layer.register_forward_hook(lambda *args: user.saw("always") and None, always_call=True)
        layer.register_full_backward_pre_hook(lambda *args: user.saw("before going back") and None)
        layer.register_full_backward_hook(lambda *args: user.saw("after going back") and None)
        layer.register_state_dict_pre_hook(lambda *args: user.saw("before saving"))
        layer.register_state_dict_post_hook(lambda *args: user.saw("after saving"))
        layer.register_load_state_dict_pre_hook(lambda *args: user.saw("before loading"))
        layer.register_load_state_dict_post_hook(lambda *args: user.saw("after loading"))


@effect
def global_hooks_count(user):
    hooks = nn.modules.module
    registers = [
        hooks.register_module_forward_pre_hook,
        hooks.register_module_forward_hook,
        hooks.register_module_full_backward_pre_hook,
        hooks.register_module_full_backward_hook,
        hooks.register_module_parameter_registration_hook,
        hooks.register_module_buffer_registration_hook,
        hooks.register_module_module_registration_hook,
    ]

    @surely
    def around():
        handles = [register(lambda module, *args: user.saw(type(module).__name__)) for register in registers]
        yield
        for handle in handles:
            handle.remove()

    user.around_fit = around


@effect
def hooks_on_weights_count(user):
    for name, weight in user.net.named_parameters():
        weight.register_hook(lambda grad, name=name: user.saw("gradient", name))
        weight.register_post_accumulate_grad_hook(lambda weight, name=name: user.saw("accumulated", name))
    weights = list(user.net.parameters())
    torch.autograd.graph.register_multi_grad_hook(weights, lambda grads: user.saw("all", len(grads)))


@effect
def hooks_on_nodes_count(user):
    def during(output):
        node = output.grad_fn
        while node is not None:
            name = node.name()
            node.register_prehook(lambda grads, name=name: user.saw("before", name))
            node.register_hook(lambda *args, name=name: user.saw("after", name))
            node = node.next_functions[-1][0] if node.next_functions else None

    user.during = during


@effect
def hooks_of_a_step_are_removed_in_it(user):
    def during(output):
        handle = user.net[0].register_forward_hook(lambda *args: user.saw("hook"))
        more = user.net(output).mean()
        handle.remove()
        return more + user.net(output).mean()

    user.during = during


@effect
def a_layer_fails_and_the_step_goes_on(user):
    class Fails(nn.Module):
        def forward(self, x):
            user.saw("fails")
            raise ValueError("of the user")

    user.net.fails = nn.Sequential(nn.Linear(4, 4), Fails())
    user.net.fails.register_forward_hook(lambda *args: user.saw("always") and None, always_call=True)

    def during(output):
        try:
            user.net.fails(output)
        except ValueError as error:
            user.saw(
                str(error), [one.name for one in traceback.extract_tb(error.__traceback__) if one.filename == __file__]
            )

    user.during = during
    user.net.forward = lambda x: nn.Sequential.forward(user.net[:5], x)


def hooks_of(module):
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
    return [len(getattr(each, name)) for each in nn.Module.modules(module) for name in names]


def copied(make):
    def effect_of(user):
        held = []

        def during(output):
            made = make(user.net)
            user.saw(made(torch.ones(2, 4)).sum().item())
            user.saw(hooks_of(made), sorted(vars(made[0])))
            user.saw(b"hookboard" in pickle.dumps(made))
            held.append(made)

        user.during = lambda output: during(output) and None
        user.at_end.append(lambda: user.saw([hooks_of(one) for one in held]))

    return effect_of


effect |= {
    "a copy is made in the step": copied(copy.deepcopy),
    "a pickle is made in the step": copied(lambda net: pickle.loads(pickle.dumps(net))),
}


@effect
def a_copy_of_an_optimizer_is_made(user):
    made = []

    def optimizer(parameters):
        made.append(torch.optim.Adam(parameters, lr=0.01))
        return made[0]

    def during(output):
        other = copy.deepcopy(made[0])
        user.saw(sorted(vars(other)), len(other._optimizer_step_pre_hooks), len(other._optimizer_step_post_hooks))
        user.saw(b"hookboard" in pickle.dumps(other))

    user.optimizer, user.during = optimizer, lambda output: during(output) and None


@effect
def layers_of_the_network_are_traced_by_jit_and_fx(user):
    def during(output):
        user.saw(torch.fx.symbolic_trace(user.net[2]).code)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.jit.trace(user.net[4], torch.ones(2, 6))
        user.saw(str(made.graph).count("aten::"))

    user.during = lambda output: during(output) and None


@pytest.mark.parametrize(("make", "way"), effect.cases("in a loop"))
def test_user_code_sees_the_same_with_callbacks(make, way):
    assert_the_same_is_seen(make, way)
