"""Graphs, operators, optimizers and compiled functions of the user's run no more often with our callbacks."""

import itertools
import sys
from collections import defaultdict

import pytest
import torch
from callbacks.user_program import IGNORED, Does, Effects, assert_the_same_is_seen, counting, surely
from torch import nn
from torch._dynamo.utils import counters
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

pytestmark = pytest.mark.filterwarnings(*IGNORED)

effect = Effects()


@effect
def nodes_are_numbered_in_the_order_of_calls(user):
    def during(output):
        first = output.grad_fn._sequence_nr()
        again = user.net(output)
        user.saw(again.grad_fn._sequence_nr() - first, (again * 2).grad_fn._sequence_nr() - first)

    user.during = during


@effect
def versions_and_flags_of_tensors_are_looked_at(user):
    def look(layer, args, output):
        user.saw(args[0]._version, output._version)
        user.saw(output.is_leaf, output.retains_grad, output.requires_grad, output._is_view(), output.is_inference())

    user.net[2].inplace = True
    for layer in user.net:
        layer.register_forward_hook(look)
    user.during = lambda output: user.saw(
        [p._version for p in user.net.parameters()], user.net[1].running_mean._version
    )


@effect
def a_forward_asks_in_what_mode_it_is(user):
    def look(*args):
        user.saw(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
        user.saw(torch.is_autocast_cache_enabled(), torch.is_anomaly_enabled(), torch.get_default_dtype())
        user.saw(torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision())
        user.saw(torch._C._get_tracing_state() is None, torch.jit.is_scripting(), torch.compiler.is_compiling())
        user.saw(torch.get_num_threads(), torch.is_warn_always_enabled(), str(torch._tensor_str.PRINT_OPTS))
        user.saw(torch._C._autograd._saved_tensors_hooks_is_enabled(), torch.autograd.is_multithreading_enabled())

    for layer in user.net:
        layer.register_forward_hook(lambda *args: look(*args) and None)
        layer.register_full_backward_hook(lambda *args: look(*args) and None)


@effect
def a_step_is_in_evaluation_and_without_gradients(user):
    def during(output):
        user.net.eval()
        with torch.no_grad():
            user.saw("no grad", user.net(output).sum().item())
        with torch.inference_mode():
            user.saw("inference", user.net(output.detach()).sum().item())
        user.net.train()

    user.during = during


@effect
def a_step_takes_gradients_for_samples(user):
    def loss(params, x):
        user.saw("loss")
        return torch.func.functional_call(user.net[4], params, (torch.cat([x, x[:2]]),)).square().mean()

    def during(output):
        grads = torch.func.vmap(torch.func.grad(loss), (None, 0))(dict(user.net[4].named_parameters()), output.detach())
        user.saw({name: grad.sum().item() for name, grad in grads.items()})

    user.during = during


@effect
def a_step_recomputes_with_a_policy(user):
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(context, op, *args, **kwargs):
        user.saw(str(op), context.is_recompute)
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
    user.during = lambda output: checkpoint(
        user.net[4], output[:, [0, 1, 2, 3, 0, 1]], use_reentrant=False, context_fn=contexts
    ).mean()


@effect
def an_operator_of_the_users_counts(user):
    name = "of_the_user::halve"

    def halve(x: torch.Tensor) -> torch.Tensor:
        user.saw("halve")
        return x / 2

    made = torch.library.custom_op(name, halve, mutates_args=())
    made.register_fake(lambda x: user.saw("fake") or torch.empty_like(x))
    made.register_autograd(
        lambda ctx, grad: user.saw("backward") or grad / 2,
        setup_context=lambda ctx, inputs, output: user.saw("context"),
    )
    user.net.append(Does(made))
    user.net.append(nn.Linear(4, 4))


@effect
def an_optimizer_and_its_state_count(user):
    called = "step", "zero_grad", "add_param_group", "state_dict", "load_state_dict", "__repr__", "__getstate__"
    read = "__getitem__", "__iter__", "__contains__", "get", "items", "keys", "values", "__len__"

    def optimizer(parameters):
        made = counting(torch.optim.SGD, user, *called)(parameters, lr=0.01, momentum=0.9)
        made.state = counting(defaultdict, user, *read)(dict)
        step = made.step
        made.step = lambda *args, **kwargs: user.saw("its own step") or step(*args, **kwargs)
        return made

    user.optimizer = optimizer


@effect
def hooks_on_all_optimizers_count(user):
    module = sys.modules["torch.optim.optimizer"]

    @surely
    def around():
        handles = [
            register_optimizer_step_pre_hook(lambda one, *args: user.saw("before", type(one).__name__)),
            register_optimizer_step_post_hook(lambda one, *args: user.saw("after", type(one).__name__)),
        ]
        yield
        for handle in handles:
            handle.remove()
        user.saw(len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks))

    user.around_fit = around


@effect
def a_scheduler_counts(user):
    kind = counting(torch.optim.lr_scheduler.StepLR, user, "step", "get_lr", "get_last_lr", "state_dict")
    made, steps = [], itertools.count()

    def optimizer(parameters):
        one = torch.optim.SGD(parameters, lr=0.1)
        made.append(kind(one, 1, 0.9))
        return one

    def during(output):
        if next(steps):
            made[0].step()
        user.saw(made[0].last_epoch, made[0]._step_count, made[0].get_last_lr())

    user.optimizer, user.during = optimizer, during


compiled = Effects()


def compiler_is_fresh():
    torch.compiler.reset()
    counters.clear()


@compiled
def a_function_is_compiled_in_the_step(user):
    compiler_is_fresh()
    graphs = []

    def backend(graph, inputs):
        user.saw("a graph", str(graph.graph).count("call_function"))
        graphs.append(graph)
        return graph.forward

    run = torch.compile(lambda x: (x.exp() + 1).log().mean(), backend=backend)

    def during(output):
        more = run(output)
        user.saw(dict(counters["stats"]))
        return more

    user.during = during


@compiled
def a_step_of_an_optimizer_is_compiled(user):
    compiler_is_fresh()

    def optimizer(parameters):
        made = torch.optim.SGD(parameters, lr=0.01)
        made.step = torch.compile(made.step, backend=lambda graph, inputs: user.saw("a graph") or graph.forward)
        return made

    user.optimizer = optimizer
    user.during = lambda output: user.saw(dict(counters["stats"]))


@pytest.mark.parametrize(("make", "way"), effect.cases("in a loop"))
def test_user_code_sees_the_same_with_callbacks(make, way):
    assert_the_same_is_seen(make, way)


@pytest.mark.compiles
@pytest.mark.parametrize(("make", "way"), compiled.cases("in a loop"))
def test_code_is_compiled_as_often_with_callbacks(make, way):
    assert_the_same_is_seen(make, way)
