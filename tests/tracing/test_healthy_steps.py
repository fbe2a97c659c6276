"""Steps of healthy trainings that look like faults: nothing is said of them, and nothing of the user's runs again."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as f

from hookboard import HealthMonitor, audit, watch

N = 16
X, CLASSES = torch.randn(N, 6), torch.arange(N) % 5
TOKENS = torch.randint(3, 40, (N, 12))


def policy(net, x, y):
    return f.nll_loss(net(x).log_softmax(1) * torch.linspace(-1, 1, N)[:, None], y)


def part_of_the_classes(net, x, y):
    return f.nll_loss(net(x).log_softmax(1)[:, :3], y % 3)


def surrogate(net, x, y):
    smooth = f.cross_entropy(net(x), y)
    wrong = (net(x).argmax(1) != y).float().mean() + 0 * smooth
    return smooth + (wrong - smooth).detach()


def beside_a_baseline(net, x, y):
    loss = f.cross_entropy(net(x), y)
    return loss - loss.detach() + 1


def beside_a_constant_that_was_logged(net, x, y):
    net.logged = net.scale.mean().item()
    return 1.0 - f.cosine_similarity(net(x), f.one_hot(y, 5).float()).mean()


def quantiles(net, x, y):
    return f.smooth_l1_loss(net(x).unsqueeze(2), x[:, :5].unsqueeze(1))


def column_by_column(net, x, y):
    out = net(x).sum(1, keepdim=True) * torch.ones(6)
    return sum(f.mse_loss(out[:, i], x[:, i]) for i in range(6))


class Classes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.layers(x)


STEPS = [
    *(policy, part_of_the_classes, surrogate, beside_a_baseline, beside_a_constant_that_was_logged),
    *(quantiles, column_by_column),
]


def alarms(model, batch, step):
    return [(one.rule, one.evidence) for one in audit(model, batch, step) if one.severity == "alarm"]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_said_of_a_loss_that_is_meant_so(step):
    net = Classes()
    assert alarms(net, (X, CLASSES), lambda batch: step(net, *batch)) == []


def test_as_many_positions_as_samples_may_come_first():
    net, head = nn.LSTM(6, 8), nn.Linear(8, 1)
    step = lambda batch: f.mse_loss(head(net(batch[0])[0][-1]).squeeze(1), batch[1])  # noqa: E731
    assert alarms(nn.ModuleList([net, head]), (torch.randn(N, N, 6), torch.randn(N)), step) == []


class Tokens(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.embedding, self.net = nn.Embedding(40, 8), nn.GRU(8, 8, batch_first=True, **options)
        self.head = nn.LazyLinear(40)
        self(TOKENS)

    def forward(self, tokens):
        return self.head(self.net(self.embedding(tokens))[0])


def test_a_model_that_corrects_a_few_tokens_is_not_said_to_copy_them():
    net, given = Tokens(), TOKENS.clone()
    given[torch.rand(given.shape) < 0.06] = 0
    step = lambda batch: f.cross_entropy(net(batch[0]).transpose(1, 2), batch[1])  # noqa: E731
    assert alarms(net, (given, TOKENS), step) == []


def test_positions_that_a_mask_leaves_out_of_the_loss_may_see_their_targets():
    net, mask = Tokens(bidirectional=True), torch.zeros(N, 11)
    mask[:, -1] = 1

    def step(tokens):
        errors = f.cross_entropy(net(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")
        return (errors * mask).sum() / mask.sum()

    assert alarms(net, TOKENS, step) == []


class Distance(nn.Module):
    """Counts its calls, draws numbers, and keeps statistics."""

    def __init__(self):
        super().__init__()
        self.norm, self.calls, self.draw = nn.BatchNorm1d(4), 0, random.Random(0)

    def forward(self, one, other):
        self.calls += 1
        return (self.norm(one) - self.norm(other)).norm(dim=1) * self.draw.random()


def test_a_function_of_the_users_that_torch_is_given_is_not_called_again():
    calls = []
    for callbacks in ([], [HealthMonitor(every_n_steps=1)]):
        torch.manual_seed(0)
        net, distance = nn.Linear(6, 4), Distance()
        both = nn.ModuleList([net, distance])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        batch = (X, X.flip(0), -X)
        with watch(both, optimizer, callbacks) as run, run.step(batch):
            parts = [net(part) for part in batch]
            f.triplet_margin_with_distance_loss(*parts, distance_function=distance).backward()
            optimizer.step()
        calls.append((distance.calls, distance.norm.running_mean.tolist(), net.weight.tolist()))
    assert calls[0] == calls[1]


def step_at_once(parameter):
    with torch.no_grad():
        parameter -= 0.1 * parameter.grad
    parameter.grad = None


def test_gradients_that_are_used_within_the_backward_pass_are_not_said_to_be_gone():
    net, monitor = nn.Sequential(nn.Linear(6, 5)), HealthMonitor(every_n_steps=1)
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step_at_once)
    with watch(net, torch.optim.SGD(net.parameters(), lr=0.0), [monitor]) as run:
        for _ in range(2):
            with run.step((X, CLASSES)):
                f.cross_entropy(net(X), CLASSES).backward()
    assert [one.evidence for one in monitor.verdicts if one.rule == "cut"] == []


@pytest.mark.trains
@pytest.mark.parametrize("parts", [1, 4])
def test_the_loss_of_a_constant_is_not_compared_with_a_sum_over_several_batches(parts):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 1))
    optimizer, monitor = torch.optim.SGD(net.parameters(), lr=0.01), HealthMonitor(every_n_steps=10)
    with watch(net, optimizer, [monitor]) as run:
        for _ in range(100):
            for part in range(parts):
                x, y = torch.randn(N, 6), torch.randn(N, 1)
                with run.step((x, y), accumulates=part < parts - 1):
                    (f.mse_loss(net(x), y) / parts).backward()
                    if part == parts - 1:
                        optimizer.step()
                        optimizer.zero_grad()
    assert [one for one in monitor.verdicts if one.severity == "alarm"] == []
