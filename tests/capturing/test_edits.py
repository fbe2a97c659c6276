"""An edit gives, bit for bit, what the same change written into the model gives."""

import copy
import gc
import inspect
import pickle
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from toys import newer_torch

from hookboard import Clamp, ClipNorm, Edit, Noise, Replace, Scale, Zero, api, capture
from hookboard.capturing.edits import EditRule


class Net(nn.Module):
    """`change` is what a person would write into the model, at one of its four places."""

    def __init__(self, role=None, change=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.relu, self.middle = nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 6)
        self.gelu, self.last = nn.ReLU(inplace=True), nn.Linear(6, 3)
        self.role, self.change = role, change

    def forward(self, x):
        x = self.relu(self.first(x))
        residual = x
        if self.role == "input":
            x = self.change(x)
        if self.role == "grad_input":
            x = x * 1.0
            x.register_hook(self.change)
        x = self.middle(x)
        if self.role == "output":
            x = self.change(x)
        if self.role == "grad_output":
            x = x * 1.0
            x.register_hook(self.change)
        return self.last(self.gelu(x) + residual)


RULES = {
    "scale": lambda: Scale(-0.5),
    "clamp": lambda: Clamp(-0.1, 0.2),
    "clip norm": lambda: ClipNorm(0.01),
    "zero": lambda: Zero(),
    "zero channels": lambda: Zero([0, 2, 5]),
    "noise": lambda: Noise(0.3, seed=5),
    "replace": lambda: Replace(torch.linspace(0, 1, 30).view(5, 6)),
    "a function": lambda: torch.sin,
}
ROLES = ["input", "output", "grad_input", "grad_output"]


def trained(net, *edits):
    """Outputs of three steps, the gradients of the last and the weights behind it."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    outputs = []
    generator = torch.Generator().manual_seed(1)
    with capture(net, "first", edit=edits):
        for _ in range(3):
            optimizer.zero_grad()
            y = net(torch.randn(5, 4, generator=generator))
            y.square().sum().backward()
            outputs.append(y.detach())
            optimizer.step()
    parameters = list(net.parameters())
    return [*outputs, *(p.detach() for p in parameters), *(p.grad for p in parameters)]


def test_every_rule_is_here():
    classes = {each for each in vars(api).values() if inspect.isclass(each) and issubclass(each, EditRule)}
    assert classes - {type(make()) for make in RULES.values()} == set()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("rule", RULES)
def test_an_edit_is_the_change_written_into_the_model(rule, role):
    edited = trained(Net(), Edit(RULES[rule](), "middle", role=role))
    by_hand = trained(Net(role, RULES[rule]()))
    untouched = trained(Net())
    for mine, theirs in zip(edited, by_hand, strict=True):
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)
    assert any(not torch.equal(a, b) for a, b in zip(edited, untouched, strict=True) if a is not None)


@pytest.mark.parametrize("role", ROLES)
def test_edits_apply_in_their_order(role):
    x, net = torch.ones(1, 3, requires_grad=True), nn.Sequential(nn.Identity())
    with capture(net, edit=[Edit(Scale(2.0), "0", role=role), Edit(Clamp(max=1.5), "0", role=role)]):
        y = net(x)
        y.sum().backward()
    assert (x.grad if role.startswith("grad") else y).tolist() == [[1.5] * 3]


@pytest.mark.parametrize("role", ROLES)
def test_what_is_captured_is_what_an_edit_has_made_of_it(role):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    x = torch.randn(2, 3)
    with capture(net, roles=ROLES) as plain:
        net(x).sum().backward()
    with capture(net, roles=ROLES, edit=Edit(Scale(2.0), "1", role=role)) as seen:
        net(x).sum().backward()
    assert torch.allclose(getattr(seen["1"], role), 2 * getattr(plain["1"], role))


def test_several_tensors_of_a_module_are_all_edited():
    net = nn.Sequential(nn.LSTM(4, 4))
    with capture(net, edit=Edit(Zero(), "0")):
        output, (hidden, cell) = net(torch.randn(3, 4))
    assert not output.any()
    assert not hidden.any()
    assert not cell.any()


def test_integers_are_left_as_they_are():
    net = nn.Sequential(nn.Embedding(5, 3))
    with capture(net, edit=Edit(Scale(2.0), "0", role="output")):
        doubled = net(torch.tensor([1, 2]))
    assert torch.equal(doubled, 2 * net(torch.tensor([1, 2])))


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("role", ROLES)
def test_an_edit_of_a_checkpointed_module_is_made_once(role, use_reentrant):
    def gradient(run):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
        x = torch.ones(2, 3, requires_grad=True)
        with capture(net, edit=Edit(Scale(3.0), "1", role=role)):
            run(net, x).square().sum().backward()
        return [x.grad, *(parameter.grad for parameter in net.parameters())]

    checkpointed = gradient(lambda net, x: checkpoint(net, x, use_reentrant=use_reentrant))
    for mine, theirs in zip(checkpointed, gradient(lambda net, x: net(x)), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_noise_in_a_checkpointed_module_is_an_error(use_reentrant):
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    x = torch.ones(2, 3, requires_grad=True)
    message = "'1' is checkpointed, so its recomputation would draw different noise"
    with pytest.raises(RuntimeError, match=message), capture(net, edit=Edit(Noise(1.0), "1")):
        checkpoint(net, x, use_reentrant=use_reentrant).sum().backward()


def test_half_precision_is_clipped_by_a_norm_that_does_not_overflow_and_only_above_the_limit():
    x = torch.full((1000,), 100.0, dtype=torch.float16)
    clipped = ClipNorm(1.0)(x)
    assert clipped.dtype is torch.float16
    assert clipped.float().norm().item() == pytest.approx(1.0, rel=1e-2)
    assert torch.equal(ClipNorm(1.0)(x / 1e5), x / 1e5)


# What cannot be done raises.


def in_place(x: Tensor) -> Tensor:
    return x.mul_(2)


@pytest.mark.parametrize(
    ("rule", "role", "error", "message"),
    [
        (in_place, "output", RuntimeError, "the rule for the output of '0' works in place"),
        (in_place, "grad_output", RuntimeError, "the rule for the grad_output of '0' works in place"),
        (
            lambda x: x[:1],
            "output",
            ValueError,
            r"must return .*, \(2, 3\) float32 on cpu; got \(1, 3\) float32 on cpu",
        ),
        (lambda x: None, "input", ValueError, "got NoneType"),
        (lambda x: x.double(), "grad_input", ValueError, "got .2, 3. float64 on cpu"),
    ],
)
def test_a_rule_that_does_not_return_a_tensor_like_its_own_is_an_error(rule, role, error, message):
    net = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(error, match=message), capture(net, edit=Edit(rule, "0", role=role)):
        net(torch.randn(2, 3, requires_grad=True)).square().sum().backward()
    assert not net[0]._forward_hooks


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit(Zero(), "4"), "unknown module '4'"),
        (
            Edit(Zero(), "1", role="grad_input"),
            "the grad_input of '1' cannot be edited: the module works in place",
        ),
        (
            Edit(Zero(), "3", role="grad_input"),
            "the grad_input of '3' cannot be edited: the module works in place",
        ),
        (Edit(Zero(), "2"), "'2' cannot be edited: hooks never fire in a TorchScript module"),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.torch.jit:FutureWarning")
def test_a_place_that_cannot_be_edited_is_an_error_before_anything_runs(edit, message):
    block = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3))
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), torch.jit.script(nn.Linear(3, 3)), block)
    with pytest.raises(ValueError, match=message), capture(net, ["0", "1"], edit=edit):
        pass
    assert not any(module._forward_hooks for module in net)


@pytest.mark.parametrize(
    ("role", "cause"), [("output", "no call to the module passed"), ("grad_output", "no gradient reached")]
)
def test_an_edit_that_changed_nothing_is_an_error(role, cause):
    net = nn.Sequential(nn.Linear(3, 3))
    message = f"the edit of the {role} was never applied to '0': {cause}"
    with pytest.raises(LookupError, match=message), capture(net, edit=Edit(Zero(), "0", role=role)):
        pass


def test_the_gradient_of_a_tensor_that_needs_none_cannot_be_edited():
    with capture(nn.Module()) as seen, pytest.raises(ValueError, match="the gradient of 'x' cannot be changed"):
        seen.watch(torch.ones(1), "x", edit_grad=Zero())


# Rules.


@pytest.mark.parametrize("again", [copy.deepcopy, lambda rule: pickle.loads(pickle.dumps(rule))])
def test_noise_can_be_copied_and_goes_on_where_it_was(again):
    noise = Noise(1.0, seed=3)
    first = noise(torch.zeros(4))
    twin = again(noise)
    assert torch.equal(twin(torch.zeros(4)), noise(torch.zeros(4)))
    assert not torch.equal(noise(torch.zeros(4)), first)


def test_a_stored_tensor_is_not_changed_by_what_follows():
    net, stored = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), torch.tensor([[-1.0, 2.0]])
    with capture(net, edit=Edit(Replace(stored), "0")):
        net(torch.ones(1, 2))
    assert stored.tolist() == [[-1.0, 2.0]]


# What is around an edit is left alone.


def test_a_container_that_a_module_fills_is_the_callers_own():
    class Caches(nn.Module):
        def forward(self, x, cache):
            cache.append(x)
            return x

    net, cache = nn.Sequential(Caches()), []
    with capture(net, edit=Edit(Scale(2.0), "0", role="input")):
        net[0](torch.ones(1), cache)
    assert len(cache) == 1


@pytest.mark.parametrize("role", ["grad_input", "grad_output"])
def test_a_module_that_keeps_an_activation_is_let_go(role):
    class Keeps(nn.Module):
        def forward(self, x):
            self.last = torch.sigmoid(x)
            return self.last * 2

    net = nn.Sequential(Keeps())
    with capture(net, edit=Edit(Scale(1.0), "0", role=role)):
        net(torch.ones(2, requires_grad=True)).sum().backward()
    alive = weakref.ref(net[0])
    del net
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Clamp, "min=None, max=None: pass min, max, or both"),
        (lambda: Edit(Zero(), role="outputs"), "unknown role 'outputs'; did you mean 'output'"),
        (lambda: Clamp(1.0, 0.0), "min <= max"),
        (
            lambda: Zero(channels=[3])(torch.ones(2, 3)),
            r"channels=\[3\].* index 3 is out of range for .* \(2, 3\), which has 3 channels along dim 1",
        ),
    ],
)
def test_a_rule_that_cannot_work_says_what_to_give(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_edit_without_a_place_says_how_to_give_one():
    with pytest.raises(ValueError, match=r"edit=Zero\(.*: pass an Edit"), capture(nn.Linear(1, 1), edit=Zero()):
        pass


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")  # that the edit was made
@newer_torch
def test_a_model_is_exported_while_an_edit_is_active():
    net, x = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    with capture(net, edit=Edit(Scale(2.0), "0")):
        exported = torch.export.export(net, (x,), strict=True)
        assert exported.module()(x).equal(net(x))
