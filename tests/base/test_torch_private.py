"""What torch keeps private still means what we take it for. A failure here says which function of ours to mend."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.utils.checkpoint import checkpoint
from torch.utils.tensorboard import SummaryWriter

from hookboard.base import torch_private
from hookboard.writers.tensorboard import quick_writer_of


def check(name, holds):
    assert holds, f"torch has changed what `torch_private.{name}` relies on: mend that function, and nothing else."


def test_a_backward_pass_is_told_from_a_forward_pass():
    seen = []

    def block(x):
        seen.append(torch_private.in_backward())
        return x.exp()

    checkpoint(block, torch.ones(1, requires_grad=True), use_reentrant=False).sum().backward()
    check("in_backward", seen == [False, True])


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


def test_nodes_that_are_made_later_have_larger_numbers():
    x = torch.ones(1, requires_grad=True)
    before = torch_private.sequence_number()
    first, second = x * 2, x * 3
    numbers = [torch_private.sequence_number_of(y.grad_fn) for y in (first, second)]
    check("sequence_number", before <= numbers[0])
    check("sequence_number_of", numbers[0] < numbers[1])


def test_an_in_place_operation_raises_the_version_of_all_that_share_its_memory():
    x = torch.ones(2)
    watching = x.detach()
    watching.data = torch.empty(0)
    before = torch_private.version_of(watching)
    x.add_(1)
    check("version_of", torch_private.version_of(watching) == before + 1)


def test_a_view_knows_its_base():
    x = torch.ones(2, 2)
    check("base_of", torch_private.base_of(x.view(4)) is x and torch_private.base_of(x) is None)


def test_the_hooks_and_buffers_of_a_module_are_its_own_dicts():
    module = nn.BatchNorm1d(2)
    after, before = module.register_forward_hook(print), module.register_forward_pre_hook(print)
    check("forward_hooks_of", torch_private.forward_hooks_of(module) == {after.id: print})
    check("forward_pre_hooks_of", torch_private.forward_pre_hooks_of(module) == {before.id: print})
    torch_private.buffers_of(module)["running_mean"] = torch.full((2,), 7.0)
    check("buffers_of", module.running_mean.tolist() == [7.0, 7.0])
    check("parameters_of", torch_private.parameters_of(module)["weight"] is module.weight)


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


def test_a_plain_tensor_has_nothing_to_wait_for():
    x = torch.ones(2)
    check("waited", torch_private.waited(x) is x)


def test_the_file_writer_takes_whole_events(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        check("quick_writer_of", callable(quick_writer_of(writer).add_summary))
