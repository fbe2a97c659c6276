"""Trainings that learn and look ill get no alarm, sick ones do, and what is said of them is true."""

from types import SimpleNamespace

import pytest
import torch
from callbacks.heard import alarms_of
from torch import nn
from torch.nn.functional import mse_loss
from toys import Toy, batches, fit, mean_square

from hookboard import HealthMonitor, watch

pytestmark = pytest.mark.trains

EVERY = 5


def trained(model, optimizer, step, steps=80, watched=None, draw=lambda: torch.randn(32, 8)):
    """The verdicts of a training, and its losses; the run watches the optimizer unless others are given."""
    losses, watched = [], optimizer if watched is None else watched
    with watch(model, watched, [monitor := HealthMonitor(every_n_steps=EVERY)]) as run:
        for number in range(steps):
            batch = draw()
            with run.step(batch):
                loss = step(batch, number)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
    return monitor.verdicts, losses


def verdicts_of(*training, **options):
    """The verdicts of a training whose loss falls to a half or less."""
    verdicts, losses = trained(*training, **options)
    assert losses[-1] < losses[0] / 2
    return verdicts


def test_optimizers_that_take_turns_over_long_phases():
    model = net()
    first, last = (torch.optim.Adam(model[place].parameters(), 1e-2) for place in (0, 2))
    turns = iter([first] * 60 + [last] * 60)
    both = SimpleNamespace(zero_grad=model.zero_grad, step=lambda: next(turns).step())
    verdicts = verdicts_of(model, both, lambda x, number: mse_loss(model(x), x[:, :2]), 120, watched=[first, last])
    assert "no_gradient" not in {one.rule for one in verdicts}


def alarms(verdicts):
    return [str(one) for one in verdicts if one.severity == "alarm"]


def net(width=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))


def test_a_teacher_in_the_optimizer_of_its_student():
    both = nn.ModuleDict({"student": net(), "teacher": net(32)})

    def step(x, number):
        with torch.no_grad():
            wanted = both["teacher"](x)
        return mse_loss(both["student"](x), wanted)

    verdicts = verdicts_of(both, torch.optim.Adam(both.parameters(), 1e-2), step)
    assert alarms(verdicts) == []
    (note,) = [one for one in verdicts if one.rule == "no_gradient"]
    assert "teacher.0.weight" in note.evidence
    assert "other than through its targets" in note.evidence


def test_a_picture_that_is_trained_through_a_network():
    features, picture = net(), torch.zeros(32, 8, requires_grad=True)
    wanted = features(torch.randn(32, 8)).detach()
    optimizer = torch.optim.Adam([picture], 0.1)
    assert alarms(verdicts_of(features, optimizer, lambda x, number: mse_loss(features(picture), wanted))) == []


@pytest.mark.parametrize("dropout", [0.5, 0.0])
def test_a_recurrent_layer_in_evaluation_mode_is_told_if_it_drops(dropout):
    torch.manual_seed(0)
    model = nn.ModuleDict({"rnn": nn.LSTM(8, 16, 2, batch_first=True, dropout=dropout), "head": nn.Linear(16, 8)})
    model.eval()

    def step(x, number):
        return mse_loss(model["head"](model["rnn"](x[:, None])[0])[:, 0], x)

    verdicts = verdicts_of(model, torch.optim.Adam(model.parameters(), 1e-2), step, 120)
    assert ("eval_mode" in {one.rule for one in verdicts}) is (dropout > 0)


class Wrapper(torch.optim.Optimizer):
    """Wraps an optimizer as Opacus does, without calling the constructor of torch's."""

    def __init__(self, optimizer):
        self.original_optimizer, self.zero_grad = optimizer, optimizer.zero_grad
        self.param_groups = optimizer.param_groups

    def step(self, closure=None):
        return self.original_optimizer.step()


def test_an_optimizer_in_a_wrapper_that_has_no_hooks_is_watched():
    model = net()
    optimizer = Wrapper(torch.optim.Adam(model.parameters(), 1e-2))
    assert alarms(verdicts_of(model, optimizer, lambda x, number: mse_loss(model(x), x[:, :2]), 100)) == []


def test_weights_that_are_updated_by_hand_are_not_said_to_rest(lines):
    model = net()

    @torch.no_grad()
    def descend():
        for one in model.parameters():
            one -= 0.1 * one.grad

    by_hand = SimpleNamespace(zero_grad=model.zero_grad, step=descend)
    verdicts = verdicts_of(model, by_hand, lambda x, number: mse_loss(model(x), x[:, :2]), watched=[])
    assert alarms(verdicts) == []
    assert any("No problems found in 3 layers" in line for line in lines)


def test_a_weight_whose_gradient_is_assigned_is_not_said_to_be_cut_off():
    model = net()
    model.share = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with watch(model, optimizer, [monitor := HealthMonitor(every_n_steps=EVERY)]) as run:
        for _ in range(40):
            x = torch.randn(32, 8)
            with run.step(x):
                each = (model(x) - x[:, :2]).square().mean(0)
                optimizer.zero_grad()
                (model.share.detach() * each).sum().backward()
                model.share.grad = (model.share - 1 + each.detach()).detach()
                optimizer.step()
    assert "cut" not in {one.rule for one in monitor.verdicts}


class Balanced(nn.Module):
    """Tokens in, tokens out, and a number that weighs what padding does not hide."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix, self.head = nn.Embedding(12, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 12)

    def forward(self, tokens, mask):
        hidden, _ = self.mix(self.embed(tokens) * mask[..., None])
        logits = self.head(hidden)
        weighed = logits.softmax(-1) * mask[..., None]
        return logits, weighed.sum((0, 1)).square().sum() / mask.sum() ** 2


def test_a_mask_that_weighs_an_output_is_no_target():
    model = Balanced()

    def draw():
        start, mask = torch.randint(12, (16, 1)), torch.ones(16, 9, dtype=torch.long)
        mask[:4, 6:] = 0
        return (start + torch.arange(9)) % 12, mask

    def step(batch, number):
        tokens, mask = batch
        logits, balance = model(tokens, mask)
        targets = tokens.masked_fill(mask == 0, -100)
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()) + balance

    verdicts, _ = trained(model, torch.optim.Adam(model.parameters(), 1e-2), step, 40, draw=draw)
    assert alarms(verdicts) == []


def test_a_model_whose_layers_are_called_without_their_modules_is_watched_as_a_whole():
    class Ensemble(nn.Module):
        def forward(self, x):
            return torch.einsum("eoi,bi->ebo", self.stack.weight, x).mean(0)

    torch.manual_seed(0)
    model = Ensemble()
    model.stack = nn.Module()
    model.stack.weight = nn.Parameter(torch.randn(3, 2, 8) / 3)
    optimizer = torch.optim.Adam(model.parameters(), 100.0)
    verdicts, _ = trained(model, optimizer, lambda x, number: mse_loss(model(x), x[:, :2]), 60)
    assert "update_too_large" in {one.rule for one in verdicts}


class Scaling(nn.Module):
    """Divides each series by its mean; or takes its first columns as numbers of things."""

    def __init__(self, of_codes):
        super().__init__()
        self.of_codes, self.body, self.embed = of_codes, net(), nn.Embedding(80, 8)

    def forward(self, x):
        if self.of_codes:
            return self.body(self.embed(x[:, 0].long()))
        return self.body(x / x.mean(1, keepdim=True) - 1)


@pytest.mark.parametrize("of_codes", [True, False])
def test_large_numbers_that_the_model_scales_or_takes_as_codes(of_codes):
    model = Scaling(of_codes)

    def draw():
        x = torch.randint(80, (32, 8)).float() if of_codes else 300 + 100 * torch.randn(32, 8)
        return x, (x[:, :1] / 40 - 1) if of_codes else x[:, :2] / x.mean(1, keepdim=True) - 1

    def step(batch, number):
        x, wanted = batch
        return mse_loss(model(x), wanted.expand(32, 2))

    verdicts = verdicts_of(model, torch.optim.Adam(model.parameters(), 1e-2), step, draw=draw)
    assert "input_scale" not in {one.rule for one in verdicts}


# Sick nets, and what is not blamed.


class Block(nn.Module):
    def __init__(self, norm, activation):
        super().__init__()
        self.norm = norm
        self.activation = activation

    def forward(self, x):
        return x + self.activation(self.norm(x))


SHARED = nn.ReLU()


@pytest.mark.parametrize(("bias", "expected"), [(-20.0, [("dead_units", "net.2.norm")]), (0.0, [])])
@pytest.mark.parametrize(
    "activation", [nn.ReLU, lambda: SHARED, lambda: torch.relu], ids=["its own", "shared", "a function"]
)
def test_a_norm_is_dead_if_it_closes_the_activation_behind_it(activation, bias, expected):
    torch.manual_seed(0)
    blocks = [Block(nn.BatchNorm1d(8), activation()) for _ in range(3)]
    nn.init.constant_(blocks[1].norm.bias, bias)
    net = nn.Sequential(nn.Linear(4, 8), *blocks, nn.Linear(8, 3))
    assert [(one.rule, one.module) for one in alarms_of(Toy(net), batches(*[32] * 12))] == expected


def test_a_norm_whose_input_an_epsilon_outweighs_still_uses_the_statistics_of_its_batch():
    """It gives hardly anything, as one in evaluation mode may; that is not why."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, Toy(net), [1e-4 * batch for batch in batches(*[32] * 12)], monitor)
    assert [verdict for verdict in monitor.verdicts if "running statistics" in verdict.evidence] == []


class Annealed(Toy):
    """Its second head counts by a weight in a buffer, which is 0 at first."""

    def __init__(self, steps):
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 4))
        self.first, self.second = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        self.steps = steps
        self.register_buffer("weight", torch.tensor(0.0))

    def training_step(self, batch, batch_idx):
        self.weight.fill_(float(batch_idx >= self.steps))
        x = self.net(batch)
        return mean_square(self.first(x)) + self.weight * mean_square(self.second(x))


@pytest.mark.parametrize("steps", [6, 100])
def test_a_term_that_is_multiplied_by_a_tensor_of_0_is_no_alarm(steps):
    assert alarms_of(Annealed(steps), batches(*[16] * 20)) == []


@pytest.mark.parametrize(("every", "said"), [(0, ["g.0"]), (1, []), (3, [])])
def test_an_optimizer_that_never_steps_is_said_to_be_so(every, said):
    torch.manual_seed(0)
    nets = nn.ModuleDict({"g": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)), "d": nn.Linear(8, 1)})
    optimizers = [torch.optim.Adam(net.parameters(), 1e-3) for net in nets.values()]
    with watch(nets, optimizers, [monitor := HealthMonitor(every_n_steps=1)]) as run:
        for number in range(30):
            real = torch.randn(16, 8)
            with run.step(real):
                optimizers[0].zero_grad()
                fake = nets["g"](torch.randn(16, 4))
                nn.functional.softplus(-nets["d"](fake)).mean().backward()
                if every and number % every == 0:
                    optimizers[0].step()
                optimizers[1].zero_grad()
                given = torch.cat([nets["d"](fake.detach()), -nets["d"](real)])
                nn.functional.softplus(given).mean().backward()
                optimizers[1].step()
    alarms = [one for one in monitor.verdicts if one.severity == "alarm"]
    assert [one.module for one in alarms] == said
    assert all("the optimizer that holds its weights has never stepped" in one.evidence for one in alarms)


class Adapted(nn.Module):
    """Two frozen layers with an adapter each, and a head that is trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, width) for width in (16, 16, 4))
        self.layers[:2].requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(16, 2, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(2, 16, bias=False) for _ in range(2))
        for up in self.up:
            nn.init.zeros_(up.weight)

    def forward(self, x):
        answers = x.argmax(1) % 4
        for layer, down, up in zip(self.layers, self.down, self.up, strict=False):
            x = torch.tanh(layer(x) + up(down(x)) * 2.0)
        return nn.functional.cross_entropy(self.layers[2](x), answers)


def adapted(net, rate):
    """The verdicts of a training of adapters."""
    model, monitor = Toy(net, loss=lambda loss: loss), HealthMonitor(every_n_steps=1)
    model.configure_optimizers = lambda: torch.optim.AdamW(net.parameters(), rate, weight_decay=0)
    fit(None, model, batches(*[32] * 24, width=16), monitor)
    return monitor.verdicts


def test_a_healthy_adapter_is_silent():
    assert adapted(Adapted(), 3e-3) == ()


def test_that_both_factors_are_0_is_one_alarm():
    net = Adapted()
    for down in net.down:
        nn.init.zeros_(down.weight)
    alarms = [one for one in adapted(net, 3e-3) if one.severity == "alarm"]
    assert [one.rule for one in alarms] == ["adapters"]
    assert "2 of 2 adapters (two factors next to a frozen weight) learn nothing" in alarms[0].evidence


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("rate", [1e-7, 0.3])
def test_how_far_steps_move_the_factors_is_not_judged(rate):
    net = Adapted()
    net.layers[2].requires_grad_(False)
    assert not {one.rule for one in adapted(net, rate)} & {"update_too_large", "update_too_small"}
