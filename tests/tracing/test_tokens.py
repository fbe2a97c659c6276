"""Models of tokens: those that see what they are to predict, and those that do not know the order of what they see."""

import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from toys import fit_in_transformers
from tracing.steps import audited

from hookboard import HealthMonitor, audit

torch.manual_seed(0)
TOKENS = torch.randint(0, 20, (3, 9))


class Attends(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 20)
        self.mask = mask

    def forward(self, tokens):
        x, length = self.embed(tokens), tokens.shape[1]
        mask = None
        if self.mask is not None:
            mask = torch.zeros(length, length).masked_fill(torch.ones(length, length).triu(1).bool(), self.mask)
        return self.head(x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])


class Recurs(nn.Module):
    def __init__(self, both):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.net = nn.LSTM(8, 8, batch_first=True, bidirectional=both)
        self.head = nn.Linear(16 if both else 8, 20)

    def forward(self, tokens):
        return self.head(self.net(self.embed(tokens))[0])


def two_tensors(model):
    batch = TOKENS[:, :-1], TOKENS[:, 1:]
    return batch, lambda batch: cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def one_tensor(model):
    return TOKENS, lambda batch: cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def classes_second(model):
    return TOKENS, lambda batch: cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])


def padded(model):
    def step(batch):
        targets = torch.cat([batch[:, 1:], torch.full((3, 1), -100)], 1)
        return cross_entropy(model(batch).flatten(0, 1), targets.flatten())

    return TOKENS, step


def found_in(model, targets):
    """What is said where each token has a target."""
    return audited(
        model, TOKENS, targets, lambda outputs, wanted: cross_entropy(outputs.flatten(0, 1), wanted.flatten())
    )


WAYS = [two_tensors, one_tensor, classes_second, padded]


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_sees_later_tokens_is_an_alarm(way):
    model = Attends(None) if way in (two_tensors, padded) else Recurs(True)
    batch, step = way(model)
    (found,) = audit(model, batch, step)
    assert (found.rule, found.severity) == ("future_leak", "alarm")
    # The oracle: the output moves with the token after it.
    position = 4  # the middle
    tokens = TOKENS.clone() if way in (one_tensor, padded) else TOKENS[:, :-1].clone()
    before = model(tokens)[0, position]
    tokens[0, position + 1] = (tokens[0, position + 1] + 1) % 20
    assert not torch.equal(before, model(tokens)[0, position])
    assert f"the output at position {position} depends on that input" in found.evidence


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make",
    [lambda: Attends(float("-inf")), lambda: Attends(-1e4), lambda: Recurs(False)],
    ids=["inf", "finite", "lstm"],
)
def test_nothing_is_said_of_a_model_that_sees_earlier_tokens_only(way, make):
    model = make()
    assert audit(model, *way(model)) == ()


def test_targets_that_are_the_tokens_at_their_own_positions_are_an_alarm_where_the_model_reads_from_left_to_right():
    model = Attends(float("-inf"))
    (found,) = found_in(model, TOKENS)
    assert (found.rule, found.severity) == ("future_leak", "alarm")
    assert "at the same positions, so the model only has to copy them" in found.evidence


def test_nothing_is_said_of_a_tagger_or_a_masked_model_that_sees_everything():
    model = Attends(None)
    tags = torch.randint(0, 20, (3, 9))
    masked = torch.where(torch.rand(3, 9) < 0.5, TOKENS, -100)
    for targets in (tags, masked, TOKENS):
        assert {one.rule for one in found_in(model, targets)} <= {"no_influence"}, "it has no positions"


def test_a_model_that_corrects_a_few_tokens_is_not_said_to_copy_them():
    tokens = torch.randint(3, 20, (16, 12))
    given = tokens.masked_fill(torch.rand(tokens.shape) < 0.06, 0)
    found = audited(Recurs(False), given, tokens, lambda outputs, wanted: cross_entropy(outputs.mT, wanted))
    assert [one for one in found if one.severity == "alarm"] == []


def test_positions_that_a_mask_leaves_out_of_the_loss_may_see_their_targets():
    net, mask = Recurs(True), torch.zeros(3, 8)
    mask[:, -1] = 1

    def step(tokens):
        errors = cross_entropy(net(tokens[:, :-1]).mT, tokens[:, 1:], reduction="none")
        return (errors * mask).sum() / mask.sum()

    assert [one for one in audit(net, TOKENS, step) if one.severity == "alarm"] == []


class TakesTokens(nn.Module):
    """Sees all tokens, which it takes in some other way than by an embedding of them as they are."""

    def __init__(self, take):
        super().__init__()
        self.take, self.embed = take, nn.Embedding(20, 8)
        self.net, self.head = nn.GRU(8, 8, bidirectional=True), nn.Linear(16, 20)

    def forward(self, tokens):
        return self.head(self.net(self.take(self.embed, tokens))[0]).transpose(0, 1)


@pytest.mark.parametrize(
    "take",
    [
        lambda embed, tokens: embed(tokens.t()),
        lambda embed, tokens: embed.weight[tokens].transpose(0, 1),
        lambda embed, tokens: (one_hot(tokens, 20).float() @ embed.weight).transpose(0, 1),
        lambda embed, tokens: embed(tokens.reshape(-1)).view(3, -1, 8).transpose(0, 1),
    ],
    ids=["sequence first", "indexed", "one-hot", "flattened"],
)
def test_a_model_that_sees_later_tokens_is_an_alarm_however_it_takes_them(take):
    batch, step = classes_second(model := TakesTokens(take))
    assert [one.rule for one in audit(model, batch, step)] == ["future_leak"]


class Tagger(nn.Module):
    def __init__(self, positions=False, attends=True, mask=None):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.places = nn.Parameter(torch.randn(9, 8)) if positions else None
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) if attends else None
        self.head, self.mask = nn.Linear(8, 20), mask

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x if self.places is None else x + self.places
        return self.head(x if self.layer is None else self.layer(x, src_mask=self.mask))


def test_attention_without_positions_is_an_alarm_with_the_line_that_takes_the_tokens():
    model = Tagger()
    (found,) = found_in(model, TOKENS.flip(1))
    assert (found.rule, found.severity) == ("no_influence", "alarm")
    line = Tagger.forward.__code__.co_firstlineno + 1
    assert f"embedding at test_tokens.py:{line} (in embed) has no influence" in found.evidence
    # The oracle: the outputs of tokens in another order are those in that order.
    order = torch.randperm(9)
    torch.testing.assert_close(model.eval()(TOKENS[:, order]), model(TOKENS)[:, order])


@pytest.mark.parametrize(
    "model",
    [
        Tagger(positions=True),
        Tagger(attends=False),
        Tagger(mask=torch.ones(9, 9).triu(1).bool()),
        Tagger(mask=torch.eye(9).roll(1, 0).bool()),
    ],
    ids=["positions", "each token by itself", "causal", "a mask of places"],
)
def test_nothing_is_said_where_positions_matter_or_tokens_stay_by_themselves(model):
    assert found_in(model, TOKENS.flip(1)) == ()


def test_nothing_is_said_where_all_tokens_of_a_set_have_one_answer():
    assert found_in(Tagger(), (TOKENS.sum(1, keepdim=True) % 20).expand(-1, 9)) == ()


def test_nothing_is_said_of_a_bag_of_words():
    embed, head = nn.Embedding(20, 8), nn.Linear(8, 3)
    step = lambda batch: cross_entropy(head(embed(batch[0]).mean(1)), batch[1])  # noqa: E731
    assert audit(nn.ModuleList([embed, head]), (TOKENS, torch.tensor([0, 1, 2])), step) == ()


ROWS, LENGTH, CLASSES = 4, 16, 11
TEXTS = torch.randint(CLASSES, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))


def said_of_labels(labels):
    """What is said of targets that the step moves and masks as libraries do."""
    net = nn.Sequential(nn.Embedding(CLASSES, 8), nn.Linear(8, CLASSES))

    def loss_of(outputs, labels):
        labels = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        return cross_entropy(outputs.view(-1, CLASSES), labels.reshape(-1))

    return [(one.severity, one.evidence) for one in audited(net, TEXTS, labels, loss_of) if one.rule == "targets"]


def with_answers(count, value=None):
    """Labels of which `count` count once they are shifted: the last ones of all rows together."""
    labels = TEXTS.clone() if value is None else torch.full_like(TEXTS, value)
    flat = labels[:, 1:].reshape(-1)
    flat[: flat.numel() - count] = -100
    labels[:, 1:] = flat.view(ROWS, LENGTH - 1)
    return labels


def test_that_no_target_counts_is_an_alarm():
    ((severity, evidence),) = said_of_labels(with_answers(0))
    total, ignored = TEXTS.numel(), -100
    assert severity == "alarm"
    assert f"all {total} targets of cross_entropy at" in evidence
    assert evidence.endswith(f"are {ignored}, its ignore_index, so none of them counts")


@pytest.mark.parametrize(("count", "severity"), [(32, "alarm"), (31, "note")])
def test_that_one_token_alone_counts_is_an_alarm_from_32_targets_on(count, severity):
    ((found, evidence),) = said_of_labels(with_answers(count, 7))
    assert found == severity
    assert re.search(rf"all {count} targets that count \(of 64\) at .* are 7, one of 11 classes", evidence)


@pytest.mark.parametrize("count", [1, 40])
def test_nothing_is_said_of_answers_that_differ_or_are_few(count):
    assert said_of_labels(with_answers(count)) == []


def llama():
    """A language model of transformers, which shifts labels by itself."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=CLASSES, **sizes))


def shifted_before(tokens):
    return nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)


LABELS = {
    "all masked": (with_answers(0), "all 64 targets of cross_entropy"),
    "shifted twice": (shifted_before(TEXTS), "are the tokens two positions later"),
    "answers alone": (with_answers(40), ""),
    "all tokens": (TEXTS, ""),
}


@pytest.mark.trains
@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_judged_as_a_model_of_transformers_shifts_them(kind, tmp_path):
    (labels, evidence), monitor = LABELS[kind], HealthMonitor(every_n_steps=1)
    data = 3 * [{"input_ids": TEXTS, "labels": labels}]
    fit_in_transformers(tmp_path, llama(), data, monitor, learning_rate=1e-3)
    found = [one.evidence for one in monitor.verdicts if one.rule == "targets" and one.severity == "alarm"]
    assert len(found) == bool(evidence)
    assert all(evidence in one for one in found)
