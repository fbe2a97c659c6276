"""What torch keeps private still means what we take it for. A failure here says which function of ours to mend."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from toys import compiler_stance

from hookboard.base import torch_private


def check(name, holds):
    assert holds, f"torch has changed what `torch_private.{name}` relies on: mend that function, and nothing else."


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_a_function_transform_is_noticed(transform):
    seen = []

    def look(x):
        seen.append((torch_private.in_transform(), torch_private.is_inside_transform(x)))
        return x

    look(torch.ones(2))
    transform(look)(torch.ones(2))
    check("in_transform", [inside for inside, _ in seen] == [False, True])
    check("is_inside_transform", [wrapped for _, wrapped in seen] == [False, True])


@pytest.mark.compiles
def test_compiled_code_is_noticed():
    whole, inside, plain = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
    inside.compile(backend="eager")
    compiled = torch.compile(whole, backend="eager")
    found = [torch_private.is_compiled(module) for module in (compiled, inside, plain)]
    check("is_compiled", found == [True, True, False])


def test_a_scaler_tells_its_scale_and_which_gradients_it_has_unscaled():
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    check("scale_of", torch_private.scale_of(scaler) is None)
    scaler.scale(weight.sum()).backward()
    check("scale_of", torch_private.scale_of(scaler).item() == 8.0)
    check("has_unscaled", not torch_private.has_unscaled(scaler, optimizer))
    scaler.unscale_(optimizer)
    check("has_unscaled", torch_private.has_unscaled(scaler, optimizer))


class Named(torch.Tensor):
    """Refuses every function of torch's."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("refused")


def test_the_memory_of_a_subclass_is_had_as_a_plain_tensor():
    plain = torch_private.as_plain(torch.ones(2).as_subclass(Named))
    check("as_plain", type(plain) is torch.Tensor and plain.tolist() == [1.0, 1.0])


def test_a_fake_tensor_is_told_from_one_with_values():
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(2)
    check("can_be_read", not torch_private.can_be_read(fake) and torch_private.can_be_read(torch.ones(2)))


def test_a_collective_is_refused_before_it_begins():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with torch_private.NoCollectives("on purpose"):
            check("NoCollectives", (torch.ones(2) + 1).tolist() == [2.0, 2.0])
            for collective in (dist.all_reduce, lambda x: functional.all_reduce(x, "sum", dist.group.WORLD)):
                with pytest.raises(RuntimeError, match=r"collective .*cannot run here: on purpose"):
                    collective(torch.ones(2))
    finally:
        dist.destroy_process_group()


# Contexts in which compiled code runs uncompiled.


@pytest.fixture
def runs_compiled():
    """Tells whether a compiled function runs from its graph."""
    runs = []

    def backend(graph, inputs):
        def run(*args):
            runs.append(1)
            return graph.forward(*args)

        return run

    compiled = torch.compile(lambda x: x + 1, backend=backend)

    def ask():
        runs.clear()
        compiled(torch.ones(1))
        return bool(runs)

    return ask


@pytest.mark.compiles
@pytest.mark.parametrize("first", [0, 1])
def test_compiled_code_runs_uncompiled_until_the_last_of_two_contexts_is_left(first, runs_compiled):
    assert runs_compiled()
    contexts = [torch_private.run_eagerly(), torch_private.run_eagerly()]
    for context in contexts:
        context.__enter__()
    contexts[first].__exit__(None, None, None)
    assert not runs_compiled()
    contexts[1 - first].__exit__(None, None, None)
    assert runs_compiled()


@pytest.mark.parametrize("stance", ["default", "eager_on_recompile", "force_eager"])
def test_a_stance_that_the_user_had_set_before_is_there_again(stance):
    with torch.compiler.set_stance(stance):
        with torch_private.run_eagerly(), torch_private.run_eagerly():
            assert compiler_stance() == "force_eager"
        assert compiler_stance() == stance
        with pytest.raises(ValueError, match="on purpose"), torch_private.run_eagerly():
            raise ValueError("on purpose")
        assert compiler_stance() == stance
