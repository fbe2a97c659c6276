"""The calls of a step are made again: that leaves the run as it is, and it is not done where it would not."""

import warnings

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy, dropout2d, kl_div, linear
from toys import batches, fit

from hookboard import HealthMonitor
from hookboard.tracing import tape as tape_module
from hookboard.tracing.audit import audit
from hookboard.tracing.reading import Reader
from hookboard.tracing.tape import CannotReplayError, Tape, copy_of

torch.manual_seed(0)
X, CLASSES = torch.randn(8, 4), torch.arange(8) % 3


class Steps(LightningModule):
    """Keeps the weights and gradients of each step."""

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.loss_of = make()
        self.seen = []

    def training_step(self, batch, batch_idx):
        return self.loss_of(self.net, batch)

    def on_after_backward(self):
        self.seen += [(p.tolist(), None if p.grad is None else p.grad.tolist()) for p in self.parameters()]

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def momentum_encoder():
    net = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)])

    def loss_of(net, x):
        with torch.no_grad():
            for own, mean in zip(net[0].parameters(), net[1].parameters(), strict=True):
                mean.mul_(0.9).add_(own, alpha=0.1)
        return (net[0](x) - net[1](x)).square().mean()

    return net, loss_of


def data_of_a_weight():
    def loss_of(net, x):
        weight = net.weight.data
        weight.mul_(0.5)
        return (net(x) + linear(x, weight)).square().mean()

    return nn.Linear(4, 3), loss_of


def weights_as_out():
    net = nn.Linear(4, 3)
    net.mean = nn.Parameter(torch.zeros(8, 4), requires_grad=False)

    def loss_of(net, x):
        torch.add(net.mean, x, out=net.mean)
        return net(net.mean).square().mean()

    return net, loss_of


def embedding_with_max_norm():
    """Its weight is used by another layer too, which keeps it for the backward pass."""

    def loss_of(net, x):
        tokens = (x.abs() * 5).long()
        return linear(net(tokens), net.weight).square().mean()

    return nn.Embedding(30, 4, max_norm=0.5), loss_of


@pytest.mark.trains
@pytest.mark.parametrize("make", [momentum_encoder, data_of_a_weight, weights_as_out, embedding_with_max_norm])
def test_a_weight_that_the_step_changes_in_place_is_changed_once(make):
    alone, followed = Steps(make), Steps(make)
    fit(None, alone, batches(8, 8))
    fit(None, followed, batches(8, 8), HealthMonitor())
    assert alone.seen == followed.seen


CALLS = []


@torch.library.custom_op("hookboard_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(1)
    return x * 2


twice.register_autograd(lambda context, gradient: gradient * 2)


def test_a_custom_operator_runs_once():
    net = nn.Linear(4, 3)
    CALLS.clear()
    audit(net, (X, CLASSES), lambda batch: cross_entropy(twice(net(batch[0])), batch[1]))
    assert len(CALLS) == 1


def test_hooks_on_saved_tensors_are_called_once():
    net, calls = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), []

    def step(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(net(x).sum(), x, create_graph=True)[0].square().mean()

    with torch.autograd.graph.saved_tensors_hooks(lambda one: calls.append(1) or one, lambda one: one):
        step(X)
        alone = len(calls)
        audit(net, X, step)
    assert len(calls) == 2 * alone


def test_a_step_inside_of_transforms_is_read():
    net = nn.Linear(4, 3)

    def step(batch):
        def loss_of(weight, x, target):
            return cross_entropy(linear(x[None], weight), target[None])

        each = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(net.weight, *batch)
        return cross_entropy(net(batch[0]), batch[1]) + each.square().mean()

    assert audit(net, (X, CLASSES), step) == ()


def test_batch_norm_in_half_precision_is_made_again():
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).bfloat16()
    reader, tape = taped(lambda x: net(x).float().sum(), X.bfloat16())
    assert tape.run([{}])[0].item() == pytest.approx(reader.losses[0].number, rel=0.02, abs=0.1)


def test_weights_are_not_copied_also_those_of_another_model(monkeypatch):
    net, teacher = nn.Linear(4, 3), nn.Linear(4, 3)
    reader = Reader(net, X)
    with reader.reading():
        loss = (net(X) - teacher(X)).square().mean()
    done = reader.take_loss(loss)
    tape, seen = Tape(done.step, done.loss), []
    monkeypatch.setattr(tape_module, "copy_of", lambda *given: seen.append(copy_of(*given)) or seen[-1])
    tape.run([{}])
    own = {one.data_ptr() for model in (net, teacher) for one in model.parameters()}
    assert own == {one.data_ptr() for one in seen} - {one.data_ptr() for one in seen if one.shape == X.shape}


def test_a_warning_that_a_function_of_torch_gives_comes_once():
    net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))

    def step(batch):
        x = dropout2d(batch[0][:, :, None])[:, :, 0]  # which in torch 2.6 warns of its own line, later of its caller's
        return kl_div(net(x), batch[1])

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        audit(net, (X, torch.full((8, 3), 1 / 3)), step)
    assert len(given) == 2


def taped(step, *batch):
    reader = Reader(nn.Module(), list(batch))
    with reader.reading():
        loss = step(*batch)
    done = reader.take_loss(loss)
    return reader, Tape(done.step, done.loss)


def test_the_calls_give_what_they_gave_and_draw_the_same_random_numbers():
    def step(x):
        return (nn.functional.dropout(x, 0.5) + torch.randn(8, 4)).sum()

    torch.manual_seed(3)
    expected = step(X)
    torch.manual_seed(3)
    reader, tape = taped(step, X)
    after = torch.get_rng_state()
    assert [one.item() for one in tape.run([{}, {}])] == [expected.item()] * 2
    assert torch.equal(torch.get_rng_state(), after)
    del reader


def test_another_batch_takes_the_place_of_the_first_and_leaves_it_as_it_is():
    x = X.clone()
    reader, tape = taped(lambda x: (x[:, 0].exp() * 2).sum(), x)
    (value,) = tape.leaves
    other = torch.zeros(8, 4)
    assert tape.run([{}, {value: other}])[1].item() == 16
    assert torch.equal(x, X)
    del reader


def test_a_batch_that_is_changed_in_place_is_replayed_from_what_it_was():
    x = X.clone()
    reader, tape = taped(lambda x: x.mul_(2).sum(), x)
    assert tape.run([{}])[0].item() == pytest.approx(2 * X.sum().item())
    assert torch.equal(x, 2 * X)
    del reader


def test_a_tensor_in_a_slice_is_an_input_of_the_call_and_is_not_kept():
    reader, tape = taped(lambda x: (x * 2)[: x.abs().argmax() % 3 + 1].sum(), X.clone())
    index = next(op for op in reader.step.ops if op.name == "getitem")
    assert len(index.inputs) == 2
    assert not any(
        isinstance(given.stop, torch.Tensor) for given in index.arguments.values() if isinstance(given, slice)
    )
    assert tape.run([{}])[0].item() == pytest.approx(reader.losses[0].number)


def test_all_replays_of_a_step_share_the_limit():
    reader, tape = taped(lambda x: (x * 2).sum(), X.clone())
    tape.run([{}])
    assert 0 < reader.step.replayed < 1
    reader.step.replayed = 1.0
    with pytest.raises(CannotReplayError, match="replaying the step takes too long"):
        tape.run([{}])


def test_it_is_not_begun_where_it_would_hold_the_step_twice(monkeypatch):
    monkeypatch.setattr("hookboard.tracing.tape.BYTES", 0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    _reader, tape = taped(lambda x: net(x).sum(), X)
    tape.run([{}, {}])

    def step(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(net(x).sum(), x, create_graph=True)[0].square().mean()

    _reader, tape = taped(step, X)
    with pytest.raises(CannotReplayError, match="replaying the step takes too much memory"):
        tape.run([{}, {}])


OF_PYTHON = torch.library.Library("hookboard_kernels", "FRAGMENT")
OF_PYTHON.define("composed(Tensor x) -> Tensor")
OF_PYTHON.define("differentiated(Tensor x) -> Tensor")


def times_two(x):
    CALLS.append(1)
    return x * 2


OF_PYTHON.impl("composed", times_two, "CompositeImplicitAutograd")
OF_PYTHON.impl("differentiated", times_two, "Autograd")


@pytest.mark.parametrize("name", ["composed", "differentiated"])
def test_a_kernel_in_python_of_a_custom_operator_runs_once(name):
    net, operator = nn.Linear(4, 3), getattr(torch.ops.hookboard_kernels, name)
    CALLS.clear()
    reader = Reader(net, (X, CLASSES))
    with reader.reading():
        reader.take_without_backward(cross_entropy(operator(net(X)), CLASSES))
    reader.findings()
    assert len(CALLS) == 1
    assert reader.step.not_asked == "the step makes calls that are not torch's own"


def test_that_torch_cannot_replay_a_call_is_said_in_plain_words():
    offsets = torch.ones(8, 3).to_sparse(1)  # whose rows cannot be compared
    net = nn.Linear(4, 3)
    reader = Reader(net, (X, offsets, CLASSES))
    with reader.reading():
        reader.take_without_backward(cross_entropy(net(X) + offsets.to_dense(), CLASSES))
    reader.findings()
    assert reader.step.not_asked == "a call of the step cannot be replayed"
