"""Routers in the first step and at later looks: the tokens that each expert gets, whatever form the experts have."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear, one_hot
from toys import Toy, fit, fit_in_transformers
from tracing.steps import in_hugging_face, in_lightning

from hookboard import HealthMonitor, audit
from hookboard.measure.row import FIELDS

pytestmark = pytest.mark.trains

TOKENS, WIDTH, EXPERTS, CLASSES = 256, 16, 8, 4


class Routed(nn.Module):
    """A router, and experts as modules or as one parameter with three dimensions."""

    def __init__(self, picks=2, is_whole=False, is_argmax=False):
        super().__init__()
        torch.manual_seed(0)
        self.picks, self.is_whole, self.is_argmax = picks, is_whole, is_argmax
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = None if is_whole else nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.whole = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 4) if is_whole else None
        self.head = nn.Linear(WIDTH, CLASSES)

    def picked(self, x):
        scores = self.gate(x).softmax(-1)
        if self.is_argmax:
            best = scores.argmax(-1, keepdim=True)
            return scores.gather(-1, best), best
        return scores.topk(self.picks, dim=-1)

    def forward(self, x):
        weights, indices = self.picked(x)
        out = torch.zeros_like(x)
        for number in range(EXPERTS):
            token, place = torch.where(indices == number)
            if len(token):
                given = x[token]
                y = linear(given, self.whole[number]) if self.is_whole else self.experts[number](given)
                out = out.index_add(0, token, y * weights[token, place, None])
        return {"loss": cross_entropy(self.head(x + out), x.argmax(1) % CLASSES)}


def batch(seed=0):
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


def batches(count):
    return [batch(seed) for seed in range(count)]


def found_in(net, x):
    return [one for one in audit(net, x, lambda given: net(given)["loss"]) if one.rule == "experts"]


each_form = pytest.mark.parametrize("form", [{}, {"is_whole": True}, {"is_argmax": True, "picks": 1}])


def preferring(net, *favourites):
    with torch.no_grad():
        net.gate.bias[list(favourites)] += 50
    return net


@each_form
def test_a_router_that_gives_all_tokens_to_the_same_experts_is_one_alarm(form):
    net, x = Routed(**form), batch()
    (found,) = found_in(preferring(net, *range(net.picks)), x)
    indices = net.double().picked(x.double())[1]
    counts = one_hot(indices, EXPERTS).sum((0, 1))
    idle = [number for number, count in enumerate(counts.tolist()) if not count]
    assert found.severity == "alarm"
    assert found.evidence == (
        f"{len(idle)} of {EXPERTS} experts get none of the {len(x)} tokens ({', '.join(map(str, idle[:4]))} and "
        f"{len(idle) - 4} more); expert {counts.argmax()} gets {counts.max() / len(x):.0%}"
    )


@each_form
def test_a_router_of_zeros_is_told_by_its_equal_scores(form):
    net = Routed(**form)
    nn.init.zeros_(net.gate.weight)
    nn.init.zeros_(net.gate.bias)
    (found,) = found_in(net, batch())
    scores = net.double().gate(batch().double())
    tied = (scores == scores[:, :1]).all(1).double().mean()
    assert f"for {tied:.0%} of the tokens, a selected expert is tied with an unselected one" in found.evidence
    assert "random" in found.advice


@pytest.mark.parametrize(("favourites", "severity"), [(3, ["note"]), (4, [])])
def test_more_than_half_of_the_experts_without_a_token_is_a_note(favourites, severity):
    net = preferring(Routed(), *range(favourites))
    assert [one.severity for one in found_in(net, batch())] == severity


@each_form
def test_a_new_router_is_silent(form):
    net = Routed(**form)
    for seed in range(20):
        nn.init.normal_(net.gate.weight, std=0.02 * (seed + 1), generator=torch.Generator().manual_seed(seed))
        assert found_in(net, batch(seed)) == []


@pytest.mark.parametrize(("count", "is_judged"), [(128, True), (127, False)])
def test_few_tokens_are_not_judged(count, is_judged):
    assert bool(found_in(preferring(Routed(), 0, 1), batch()[:count])) == is_judged


class Turning(Routed):
    """Its router prefers the first two experts from one call on, up to another; both are counted from 0."""

    def __init__(self, since, until, is_whole=False):
        super().__init__(is_whole=is_whole)
        self.since, self.until, self.calls = since, until, 0
        self.bias = self.gate.bias.detach().clone()

    def forward(self, x):
        with torch.no_grad():
            self.gate.bias.copy_(self.bias)
            if self.since <= self.calls < self.until:
                self.gate.bias[:2] += 50
        self.calls += 1
        return super().forward(x)


class Offset(Routed):
    """Picks by its scores and an offset, as routers do that balance without a loss: no layer gives what it picks by."""

    def __init__(self, since):
        super().__init__()
        self.since, self.calls = since, 0

    def picked(self, x):
        offset = torch.zeros(EXPERTS)
        offset[:2] = 9.0 * (self.calls >= self.since)
        self.calls += 1
        scores = self.gate(x).softmax(-1)
        indices = (scores + offset).topk(2, dim=-1).indices
        return scores.gather(-1, indices), indices


class Counted(nn.Module):
    """As many layers as classes, and the best class: of use for an accuracy, not for the loss."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(CLASSES))
        self.head = nn.Linear(WIDTH, CLASSES)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        y = x
        for layer in self.layers:
            y = layer(y).relu()
        y, target = self.head(y), x.argmax(1) % CLASSES
        return {"loss": cross_entropy(y, target), "hits": (y.argmax(1) == target).sum()}


def test_classes_that_are_counted_for_an_accuracy_are_no_experts():
    assert found_in(Counted(), batch()) == []


class Blocks(nn.Module):
    """As many blocks in a row as it has answers."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(CLASSES))
        self.head = nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():
            self.head.bias[2] += 50

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(x)


def test_the_blocks_of_another_network_that_rates_the_best_action_are_no_experts():
    torch.manual_seed(0)
    nets = nn.ModuleDict({"now": Blocks(), "target": Blocks()})

    def step(x):
        best = nets["now"](x + 1).argmax(1, keepdim=True)
        return (nets["now"](x)[:, 0] - nets["target"](x + 1).gather(1, best)[:, 0]).square().mean()

    assert [one for one in audit(nets, batch(), step) if one.rule == "experts"] == []


class Gate(nn.Linear):
    """Returns the scores, without those beyond a capacity, and what it picks by them and noise."""

    def forward(self, x):
        scores = super().forward(x)
        picked = (scores + torch.randn_like(scores)).topk(2).indices
        return scores * (one_hot(picked, EXPERTS).cumsum(0) < 3).any(1), picked


class Noisy(Routed):
    def __init__(self):
        super().__init__()
        self.gate, self.seen = Gate(WIDTH, EXPERTS), []

    def picked(self, x):
        scores, picked = self.gate(x)
        self.seen.append(one_hot(picked, EXPERTS).sum((0, 1)))
        return scores.gather(-1, picked), picked


class ByHand(Routed):
    """Multiplies by the router's weight itself, and returns as many numbers for each token as there are experts."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(WIDTH))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)

    def forward(self, x):
        weights, indices = linear(x, self.weight).softmax(-1).topk(2)
        given = torch.stack([expert(x) for expert in self.experts], 1)
        output = (given.gather(1, indices[..., None].expand(-1, -1, WIDTH)) * weights[..., None]).sum(1)
        return {"loss": output.square().mean()}


class OverTokens(Routed):
    """Its softmax runs over the tokens: for each of them it does not keep the order of the scores."""

    def picked(self, x):
        return self.gate(x).softmax(0).topk(2, dim=-1)


class Balanced(Routed):
    """Adds a loss of the shares of the tokens whose best expert each is."""

    def picked(self, x):
        scores = self.gate(x).softmax(-1)
        shares = one_hot(scores.argmax(-1), EXPERTS).double().mean(0)
        weights, indices = scores.topk(2, dim=-1)
        return weights * (1 + 0.1 * (shares * scores.mean(0)).sum()).float(), indices


def counts_of(monitor):
    seen = [one for one in monitor.readings if one.site.role == "expert_tokens"]
    return [(one.channels[:, 0] * one.channels[:, 1]).tolist() for one in seen]


def test_picks_that_a_layer_returns_are_counted_whatever_they_were_picked_by(tmp_path):
    net = Noisy()
    assert counts_of(in_lightning(tmp_path, net, batches(3))) == [net.seen[-1].tolist()]


@pytest.mark.parametrize("kind", [ByHand, OverTokens])
def test_outputs_that_do_not_show_what_is_picked_are_not_counted(kind, tmp_path):
    assert counts_of(in_lightning(tmp_path, kind(), batches(3))) == []


def test_the_picks_count_and_not_the_best_of_a_loss_that_balances(tmp_path):
    net = preferring(Balanced(), 0)
    monitor = in_lightning(tmp_path, net, batches(6))
    assert sum(counts_of(monitor)[0]) == 2 * TOKENS
    assert of_experts(monitor.verdicts) == []


def test_a_router_that_goes_by_the_batch_is_silent(tmp_path):
    net = Routed(picks=1)
    with torch.no_grad():
        net.gate.weight[:, :EXPERTS] = 50 * torch.eye(EXPERTS)
    data = [batch(seed) + 5 * one_hot(torch.tensor(seed), WIDTH) for seed in range(EXPERTS)]
    assert of_experts(in_lightning(tmp_path, net, data).verdicts) == []


def test_experts_that_are_not_watched_are_not_said_to_get_nothing(tmp_path):
    monitor = HealthMonitor("net.experts.0", every_n_steps=1)
    fit(tmp_path, Toy(Offset(99), loss=lambda found: found["loss"]), [batch().repeat(16, 1) for _ in range(6)], monitor)
    assert of_experts(monitor.verdicts) == []


each_loop = pytest.mark.parametrize(("train", "is_whole"), [(in_lightning, True), (in_hugging_face, False)])


@each_loop
def test_in_a_training_one_verdict_says_that_most_experts_are_unused(train, is_whole, tmp_path):
    verdicts = train(tmp_path, preferring(Routed(is_whole=is_whole), 0, 1), batches(6)).verdicts
    assert [one.rule for one in verdicts if one.severity == "alarm"] == ["experts"]
    assert len([one for one in verdicts if one.rule == "no_gradient"]) <= 1


def of_experts(verdicts):
    return [(one.severity, one.since, one.until) for one in verdicts if one.rule == "experts"]


@each_loop
def test_a_router_that_collapses_later_is_an_alarm_since_then(train, is_whole, tmp_path):
    verdicts = train(tmp_path, Turning(3, 99, is_whole), batches(8)).verdicts
    assert of_experts(verdicts) == [("alarm", 3, None)]


@pytest.mark.parametrize(("train", "since"), [(in_lightning, 0), (in_hugging_face, 3), (in_lightning, 99)])
def test_where_no_layer_gives_the_scores_the_rows_that_experts_give_are_counted(train, since, tmp_path):
    (found, *_) = of_experts(train(tmp_path, Offset(since), batches(8)).verdicts) or [None]
    assert found == (("alarm", since, None) if since < 99 else None)


@pytest.mark.parametrize(("until", "said"), [(1, []), (5, [("note", 0, 4)])])
def test_a_router_that_mends_itself_is_told_with_its_last_step_unless_that_is_the_first(until, said, tmp_path):
    assert of_experts(in_lightning(tmp_path, Turning(0, until), batches(12)).verdicts) == said


def test_the_tokens_that_a_later_look_counts_are_those_of_all_its_micro_batches(tmp_path):
    net, picked = preferring(Routed(), 0), []
    net.gate.register_forward_hook(lambda gate, given, scores: picked.append(scores.detach().double().topk(2).indices))
    monitor = in_lightning(tmp_path, net, batches(8), accumulate_grad_batches=2)
    (reading,) = [one for one in monitor.readings if one.site.role == "expert_tokens"]
    wanted = one_hot(torch.cat(picked[-2:]), EXPERTS).sum((0, 1)).double()
    count, mean = (FIELDS.index(name) for name in ("count", "mean"))
    assert (reading.channels[:, count] * reading.channels[:, mean]).tolist() == wanted.tolist()
    run = monitor._run
    assert run.recent("expert_share")[run.place("net.gate"), -1] == pytest.approx(float(wanted.max() / wanted.sum()))


@each_loop
def test_a_healthy_router_is_silent_in_a_training(train, is_whole, tmp_path):
    verdicts = train(tmp_path, Routed(is_whole=is_whole), batches(6)).verdicts
    assert [one.rule for one in verdicts if one.rule in ("experts", "no_gradient")] == []


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_routers_of_a_mixture_of_transformers_are_judged(is_tied, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "num_local_experts": EXPERTS, "output_router_logits": True}
    config = transformers.MixtralConfig(vocab_size=11, **sizes)
    net, tokens = transformers.MixtralForCausalLM(config), torch.randint(11, (8, 16))
    for name, parameter in net.named_parameters():
        if is_tied and "gate.weight" in name:
            nn.init.zeros_(parameter)
    monitor = HealthMonitor(every_n_steps=1, window=1)
    fit_in_transformers(tmp_path, net, [{"input_ids": tokens, "labels": tokens}], monitor, learning_rate=1e-3)
    found = [one for one in monitor.verdicts if one.rule == "experts"]
    assert [(one.severity, "is tied" in one.evidence) for one in found] == [("alarm", True)] * is_tied
