"""Outputs that depend on other samples or on their own targets are found, and those that are meant to are not."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, normalize, relu
from tracing.steps import audited

from hookboard import audit

torch.manual_seed(0)
SEQUENCES, CLASSES = torch.randn(4, 6, 5), torch.arange(4) % 3


class Body(nn.Module):
    """A layer, something in between, and a head that takes the mean over positions."""

    def __init__(self, between, inputs=5, features=8):
        super().__init__()
        self.stem, self.head, self.between = nn.Linear(inputs, features), nn.Linear(features, 3), between

    def forward(self, x):
        x = self.between(self.stem(x))
        return self.head(x.flatten(1, -2).mean(1) if x.dim() > 2 else x)


def mixing(between, x=SEQUENCES, targets=CLASSES, **options):
    model = Body(between, x.shape[-1], **options)
    found = audited(model, x, targets, cross_entropy)
    return [(one.severity, one.evidence.split(" at ")[0]) for one in found if one.rule == "batch_mixing"]


def attention(x, dim):
    return (x @ x.transpose(1, 2)).softmax(dim) @ x


@pytest.mark.parametrize(
    ("between", "name", "positions"),
    [
        (lambda x: attention(x, 0), "softmax", 6),
        (lambda x: attention(x[x[:, 0, 0].argsort()], 0), "softmax", 6),
        (lambda x: x.view(6, 4, 8).transpose(0, 1), "view", 6),
        (lambda x: x.view(8, 4, 8).transpose(0, 1), "view", 8),  # a multiple of the samples
        (lambda x: x.cumsum(0), "cumsum", 6),
    ],
)
def test_a_call_that_mixes_samples_is_an_alarm(between, name, positions):
    assert mixing(between, torch.randn(4, positions, 5)) == [("alarm", name)]


def test_rows_that_are_mixed_are_a_note_for_they_may_be_the_objects_of_one_scene():
    assert mixing(lambda x: x.softmax(0), SEQUENCES[:, 0]) == [("note", "softmax")]


@pytest.mark.parametrize(
    "between",
    [
        lambda x: attention(x, -1),
        lambda x: 0.7 * x + 0.3 * x[[2, 0, 3, 1]],
        lambda x: 0.7 * x + 0.3 * x.flip(0),
        lambda x: x - x.mean(0),
    ],
    ids=["attends", "list", "flip", "mean"],
)
def test_nothing_is_said_of_samples_that_stay_by_themselves_or_are_put_in_another_order(between):
    assert mixing(between) == []


def test_a_number_of_the_whole_batch_is_none_where_features_are_as_many_as_samples():
    between = lambda x: torch.cat([x[:, :-1], x.var(0).mean().expand(4, 1, 4)], 1)  # noqa: E731
    assert mixing(between, torch.randn(4, 6, 5), features=4) == []


@pytest.mark.parametrize("is_called_once", [True, False])
def test_distances_of_all_pairs_are_none_where_features_are_as_many_as_samples(is_called_once):
    torch.manual_seed(0)
    model = nn.Linear(5, 4)

    def step(batch):
        output = model(batch[0])
        distances = torch.cdist(output, output if is_called_once else model(batch[0]))
        is_same = batch[1][:, None] == batch[1]
        return relu((distances * is_same).amax(1) - (distances + 9 * is_same).amin(1) + 1).mean()

    assert audit(model, (SEQUENCES[:, 0], CLASSES), step) == ()


def test_two_views_in_one_batch_stay_by_themselves_where_features_are_as_many_as_samples():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4))

    def step(batch):
        output = normalize(model(torch.cat(batch)), dim=1)
        alike = (output @ output.T).masked_fill(torch.eye(8).bool(), -1e4)
        return cross_entropy(alike, (torch.arange(8) + 4) % 8)

    assert audit(model, (torch.randn(4, 5), torch.randn(4, 5)), step) == ()


def test_nodes_that_take_those_at_the_other_end_of_an_edge_are_none():
    stem, head = nn.Linear(5, 8), nn.Linear(8, 3)
    nodes, edges = torch.randn(12, 5), torch.stack([torch.arange(12).roll(3), torch.arange(12)])

    def step(batch):
        features = stem(batch[0])
        return cross_entropy(head(features.new_zeros(12, 8).index_add(0, batch[1][1], features[batch[1][0]])), batch[2])

    assert audit(nn.ModuleList([stem, head]), (nodes, edges, torch.arange(12) % 3), step) == ()


SERIES = torch.randn(4, 12, 2).cumsum(1)


@pytest.mark.parametrize(("recalls", "rules"), [(True, []), (False, ["future_leak"])])
def test_a_model_that_recalls_numbers_leaves_out_its_first_outputs(recalls, rules):
    stem, net, head = nn.Linear(2, 4), nn.GRU(4, 8, batch_first=True, bidirectional=not recalls), nn.LazyLinear(2)
    head(net(stem(SERIES))[0])

    def step(batch):
        outputs = head(net(stem(batch))[0])
        return mse_loss(outputs[:, 3:], batch[:, 2:-1]) if recalls else mse_loss(outputs[:, :-1], batch[:, 1:])

    assert [one.rule for one in audit(nn.ModuleList([stem, net, head]), SERIES, step)] == rules


TOKENS = torch.randint(0, 20, (3, 9), generator=torch.Generator().manual_seed(0))


class Reads(nn.Module):
    """Reads tokens from left to right, after a summary of others."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.reads_all, self.net = nn.GRU(8, 8, batch_first=True), nn.GRU(8, 8, batch_first=True)

    def forward(self, tokens, others=None):
        start = None if others is None else self.reads_all(self.embed(others))[1]
        return self.head(self.net(self.embed(tokens), start)[0]).flatten(0, 1)


def test_a_decoder_may_see_what_it_is_to_predict_through_an_encoder():
    model = Reads()
    assert audit(model, TOKENS, lambda batch: cross_entropy(model(batch[:, :-1], batch), batch[:, 1:].flatten())) == ()


def test_targets_two_tokens_later_are_an_alarm_unless_others_are_the_next_ones():
    model, further = Reads(), Reads()

    def next_but_one(batch):
        return cross_entropy(further(batch[:, :-2]), batch[:, 2:].flatten())

    (found,) = audit(further, TOKENS, next_but_one)
    assert (found.rule, found.severity) == ("targets", "alarm")
    both = nn.ModuleList([model, further])
    step = lambda batch: cross_entropy(model(batch[:, :-1]), batch[:, 1:].flatten()) + next_but_one(batch)  # noqa: E731
    assert audit(both, TOKENS, step) == ()


@pytest.mark.parametrize(
    ("norm", "severity"),
    [
        (nn.BatchNorm1d(6), []),
        (lambda x: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False), []),
        (nn.Sequential(nn.BatchNorm1d(6), nn.Softmax(0)), ["softmax"]),
    ],
)
def test_a_batch_norm_may_mix_samples_and_what_follows_it_may_not(norm, severity):
    assert [name for _, name in mixing(norm)] == severity


def test_a_view_of_the_batch_that_mixes_samples_is_an_alarm():
    model = nn.Sequential(nn.LSTM(5, 8), Last())
    step = lambda batch: cross_entropy(model(batch[0].view(6, 4, 5)), batch[1])  # noqa: E731
    assert [(one.rule, one.evidence.split(" at ")[0]) for one in audit(model, (SEQUENCES, CLASSES), step)] == [
        ("batch_mixing", "view")
    ]


@pytest.mark.parametrize(("is_first", "rules"), [(True, []), (False, ["batch_mixing"])])
def test_a_recurrent_layer_that_takes_the_batch_runs_over_its_samples_unless_they_are_first(is_first, rules):
    model = nn.Sequential(nn.GRU(5, 8, batch_first=is_first), Last())
    found = audited(model, SEQUENCES, CLASSES, cross_entropy)
    assert [one.rule for one in found] == rules


class Last(nn.Module):
    """Takes the first three numbers of a recurrent layer's output: at the last position, or at the last sample."""

    def forward(self, returned):
        output = returned[0]
        return output[:, -1, :3] if output.shape[0] == len(CLASSES) else output[-1, :, :3]


class Packed(nn.Module):
    """Reads sequences of several lengths, and attends to what it has read."""

    def __init__(self):
        super().__init__()
        self.net, self.score, self.head = nn.GRU(5, 8, batch_first=True), nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        read = nn.utils.rnn.pad_packed_sequence(self.net(packed)[0], batch_first=True)[0]
        return self.head((self.score(read).softmax(1) * read).sum(1))


@pytest.mark.parametrize("lengths", [(6, 2, 3, 1), (6, 5, 3, 2)])
def test_packed_rows_that_are_a_multiple_of_the_samples_are_no_samples(lengths):
    model = Packed()
    lengths = torch.tensor(lengths)
    assert audit(model, (SEQUENCES, CLASSES), lambda batch: cross_entropy(model(batch[0], lengths), batch[1])) == ()


@pytest.mark.parametrize("boxes", [8, 16])
def test_as_many_boxes_as_channels_or_rows_of_one_picture_are_no_samples(boxes):
    stem, head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 3)
    picture, places = torch.randn(1, 3, 16, 16), torch.randint(0, 16, (boxes, 2))

    def step(batch):
        return cross_entropy(head(stem(batch[0])[0, :, places[:, 0], places[:, 1]].T), batch[1])

    assert audit(nn.ModuleList([stem, head]), (picture, torch.arange(boxes) % 3), step) == ()


@pytest.mark.parametrize("positions", [7, 8])
def test_a_reshape_that_mixes_samples_is_an_alarm_whatever_the_number_of_positions(positions):
    embed, net, head = nn.Embedding(20, 6), nn.GRU(6, 8), nn.Linear(8 * positions, 3)
    tokens = torch.randint(0, 20, (4, positions))

    def step(batch):
        return cross_entropy(head(net(embed(batch[0]).transpose(0, 1))[0].reshape(4, -1)), batch[1])

    found = audit(nn.ModuleList([embed, net, head]), (tokens, CLASSES), step)
    assert [(one.rule, one.evidence.split(" at ")[0]) for one in found] == [("batch_mixing", "reshape")]


@pytest.mark.parametrize("positions", [4, 6])
def test_a_forgotten_batch_first_is_an_alarm_also_with_as_many_positions_as_samples(positions):
    model = nn.Sequential(nn.Embedding(20, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0))
    head = nn.Linear(8, 3)
    tokens = torch.randint(0, 20, (4, positions))
    step = lambda batch: cross_entropy(head(model(batch[0]).mean(1)), batch[1])  # noqa: E731
    found = audit(nn.ModuleList([model, head]), (tokens, CLASSES), step)
    assert [(one.rule, one.advice) for one in found] == [("batch_mixing", "set batch_first=True")]
