import math
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from oracle import assert_true
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code
from torch.utils.checkpoint import checkpoint
from toys import IS_OLD_TORCH, newer_torch

from hookboard import HookboardWarning, Statistic
from hookboard.measure import graphs
from hookboard.measure.statistics import FORMULAS, plan
from hookboard.measure.table import Table
from hookboard.measure.taps import Taps
from hookboard.model.selection import select

pytestmark = [
    pytest.mark.compiles,
    # What torch says where it compiles.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

NAMES = tuple(FORMULAS)


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.up = nn.Linear(width, 2 * width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.attention(self.norm(x)).chunk(3, -1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.down(self.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, depth=2, **checkpointing):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(8, 11)
        self.checkpointing = checkpointing

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, **self.checkpointing) if self.checkpointing else block(x)
        return self.head(x)


def images(step):
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))


def text(step):
    return torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(step))


def train(net, make_input, steps, *, roles=("output", "grad_output"), run=None, statistics=NAMES, histogram=False):
    """Every due step's readings, and the weights afterwards; every second step is due."""
    table = Table(plan(statistics), torch.device("cpu"), histogram=histogram)
    taps = Taps(select(net), roles, table.open, in_graphs=True)
    taps.attach()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    readings = []
    for step in range(steps):
        taps.active = step % 2 == 1
        optimizer.zero_grad()
        (net if run is None else run)(make_input(step)).square().mean().backward()
        optimizer.step()
        if taps.active:
            readings.append({reading.site: reading for reading in table.send()().values()})
    taps.detach()
    return readings, [p.detach().clone() for p in net.parameters()]


def assert_equal_readings(found, expected, rel=1e-5):
    assert len(found) == len(expected) > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for site, reading in theirs.items():
            other = mine[site].statistics
            scale = reading.statistics.get("abs_max", 1.0)
            for name, value in reading.statistics.items():
                close = pytest.approx(value, rel=rel, abs=rel * scale if name == "mean" else 0, nan_ok=True)
                assert other[name] == close, (site, name)


def short_cnn():
    torch.manual_seed(0)
    convolution = [nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(inplace=True)]
    return nn.Sequential(*convolution, nn.Flatten(), nn.Linear(4 * 3 * 3, 5))


def test_a_compiled_graph_measures_what_eager_does():
    roles = ("output", "input", "grad_output")
    expected, weights = train(short_cnn(), images, 4, roles=roles)
    net = short_cnn()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    found, compiled_weights = train(net, images, 4, roles=roles, run=compiled)
    assert_equal_readings(found, expected)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] <= 2
    for mine, theirs in zip(compiled_weights, weights, strict=True):
        torch.testing.assert_close(mine, theirs)


def observed_in_a_graph(net, *roles):
    """Taps that observe a network which is to be compiled, and their table."""
    table = Table(plan(NAMES), torch.device("cpu"))
    taps = Taps(select(net), roles, table.open, in_graphs=True)
    taps.attach()
    taps.active = True
    return taps, table


def test_a_graph_computes_nothing_that_only_hookboard_needs():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))  # which needs no kernel of its own
    taps, table = observed_in_a_graph(net, "output", "grad_output")

    def run(x):
        torch.compile(net, fullgraph=True)(x).backward(torch.ones(3, 4))

    _, codes = run_and_get_code(run, rows_of_four(0).requires_grad_())
    taps.detach()
    assert len(table.send()()) == 4
    assert sum(code.count("hookboard.show") for code in codes) >= 6
    assert not any("cpp_fused" in code or "copy_" in code for code in codes)


@pytest.mark.skipif(IS_OLD_TORCH, reason="older versions compile equal modules with hooks one by one, see limits.md")
def test_equal_blocks_share_their_graphs():
    def compiled(depth):
        net = Transformer(depth)
        for block in net.blocks:
            block.compile(fullgraph=True, backend="aot_eager")
        return net

    bare = compiled(3)
    for step in range(2):
        bare(text(step)).square().mean().backward()
    graphs_without = counters["stats"]["unique_graphs"]
    torch.compiler.reset()
    counters.clear()
    found, _ = train(compiled(3), text, 4)
    assert counters["stats"]["unique_graphs"] <= 2 * graphs_without
    assert not counters["graph_break"]
    expected, _ = train(Transformer(3), text, 4)
    assert_equal_readings(found, expected)


CHECKPOINTED = [("eager", True), ("eager", False), ("compiled around", True), ("compiled inside", False)]


@cache
def readings_without_checkpointing():
    return train(Transformer(), text, 4)[0]


@pytest.mark.parametrize(("how", "use_reentrant"), CHECKPOINTED)
def test_checkpointing_changes_no_count_and_no_value(how, use_reentrant):
    net, run = Transformer(use_reentrant=use_reentrant), None
    if how == "compiled around":
        run = torch.compile(net, backend="aot_eager")
    elif how == "compiled inside":
        for block in net.blocks:
            block.compile(fullgraph=True, backend="aot_eager")
    found, _ = train(net, text, 4, run=run)
    assert_equal_readings(found, readings_without_checkpointing())


def rows_of_four(step):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(step))


ALL_ROLES = ("input", "output", "grad_input", "grad_output")


def assert_same_compiled(make, *, fullgraph=True, **options):
    """Four steps of the compiled network give the readings of the eager one; returns them."""
    expected, _ = train(make(), rows_of_four, 4, **options)
    net = make()
    run = torch.compile(net, fullgraph=fullgraph, backend="aot_eager")
    found, _ = train(net, rows_of_four, 4, run=run, **options)
    assert_equal_readings(found, expected)
    for site, reading in expected[0].items() if options.get("histogram") else ():
        assert found[0][site].histogram.counts.tolist() == reading.histogram.counts.tolist()
    return found


class Several(nn.Module):
    def forward(self, x, *, shift):
        doubled = 2 * x
        many = tuple(x + k for k in range(12))
        return {"sum": x + shift, "parts": (x.relu(), [shift * x]), "twice": (doubled, doubled), "many": many}


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.several = Several()

    def forward(self, x):
        x = self.first(x)
        out = self.several(x, shift=x)
        again = self.several(x, shift=x)  # which the compiler computes once
        return out["sum"] + out["parts"][0] + out["parts"][1][0] + sum(out["twice"]) + sum(again["many"])


def test_several_tensors_and_ones_own_statistics_are_measured_under_their_names():
    large = Statistic("large", lambda x: (x.abs() > 1).double().mean(), merge="mean")
    untraceable = Statistic("own", lambda x: float(np.abs(x.numpy()).max()) if x.sum() > 0 else -1.0, merge="max")
    statistics = ["mean", "max", "nonfinite_count", large, untraceable]
    found = assert_same_compiled(Branching, roles=ALL_ROLES, statistics=statistics, histogram=True)
    paths = {site.path for site in found[0] if (site.name, site.role) == ("several", "output")}
    within = ["sum", "parts/0", "parts/1/0", "twice/0", "twice/1", *(f"many/{k}" for k in range(12))]
    assert paths == {f"several/{path}" for path in within}


def linears():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), nn.Flatten(), nn.Linear(4, 4))


def no_number(x):
    raise RuntimeError("no number today")


def test_a_statistic_that_fails_in_a_graph_switches_its_sites_off_and_training_goes_on():
    own = Statistic("own", lambda x: no_number(x) if x.dim() == 2 else x.double().sum(), merge="sum")
    _, expected = train(linears(), rows_of_four, 4)
    net = linears()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", HookboardWarning)
        run = torch.compile(net, fullgraph=True, backend="aot_eager")
        found, weights = train(net, rows_of_four, 4, run=run, statistics=["mean", own])
    ours = [str(w.message) for w in said if w.category is HookboardWarning]
    assert len(ours) == 6  # of all but the second, what flows forward and backward
    assert all("no number today" in text and "is switched off" in text for text in ours)
    assert {site.name for site in found[-1]} == {"1"}
    for mine, theirs in zip(weights, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


class Jagged(nn.Module):
    def forward(self, x):
        return torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 1, 3]))


class Unwraps(nn.Module):
    def forward(self, x):
        return x.values()


class PerSample(nn.Module):
    """Runs a module under a function transform."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return torch.func.vmap(self.inner)(x) + torch.func.grad(lambda t: self.inner(t).sum())(x)


@pytest.mark.parametrize(
    ("make", "name", "cause"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), Jagged(), Unwraps()), "1", "tensor subclasses"),
        pytest.param(PerSample, "inner", "compiled code runs it", marks=newer_torch),
    ],
    ids=["nested", "vmap"],
)
def test_a_tensor_that_a_graph_cannot_show_is_named_and_training_goes_on(make, name, cause):
    torch.manual_seed(0)
    net = make()
    taps, table = observed_in_a_graph(net, "output", "grad_output")
    torch.compile(net, backend="aot_eager")(rows_of_four(0)).sum().backward()
    measured = {(reading.site.name, reading.site.role) for reading in table.send()().values()}
    taps.detach()
    for role in ("output", "grad_output"):
        assert (name, role) not in measured
        assert cause in taps.why_silent(name, role)


class Rooted(nn.Module):
    """Leaves its graph for a sparse tensor, which no graph holds."""

    def forward(self, x):
        return x.relu().to_sparse()


class Dense(nn.Module):
    def forward(self, x):
        return x.to_dense()


@newer_torch
def test_hooks_between_two_graphs_measure_as_eager_ones_do():
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), Rooted(), Dense(), nn.Linear(4, 4))

    assert_same_compiled(net, fullgraph=False, roles=ALL_ROLES)


def test_extreme_values_of_several_calls_and_dtypes_are_true_in_a_graph():
    net = nn.Sequential(nn.Identity())
    taps, table = observed_in_a_graph(net, "output")
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for values in ([3e38, -3e38, 1e38, 0.0], [1.0, math.nan, math.inf, -2.0]):
        for part in (given := [torch.tensor(values), torch.tensor(values[:2]).bfloat16()]):
            compiled(part)
        (reading,) = table.send()().values()
        assert_true(reading.statistics, given)
    taps.detach()


class Doubles(nn.Module):
    """Doubles in place what an inner module has made of a hidden tensor, and goes on with the hidden tensor."""

    def __init__(self, inner):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x):
        hidden = self.first(x)
        y = self.inner(hidden)
        y *= 2
        return hidden.square() + y


class Residual(nn.Module):
    """Its block works in place on a tensor that is needed again."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))

    def forward(self, x):
        hidden = self.first(x)
        return self.block(hidden) + hidden


def test_what_is_changed_in_place_trains_compiled_as_it_does_alone():
    def blocks():
        return nn.Sequential(Residual(), Doubles(nn.Identity()), Doubles(nn.Sequential(nn.Dropout(0.0))))

    trained = []
    for roles in ((), ("output", "grad_output", "grad_input")):
        net = blocks()
        run = torch.compile(net, fullgraph=True, backend="aot_eager")
        trained.append(train(net, rows_of_four, 4, run=run, roles=roles)[1])
    for mine, theirs in zip(*trained, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_receiver_whose_taps_are_off_is_forgotten():
    before = dict(graphs._RECEIVERS)
    taps, _ = observed_in_a_graph(nn.Sequential(nn.ReLU()), "output")
    assert len(graphs._RECEIVERS) == len(before) + 1
    taps.detach()
    assert before == graphs._RECEIVERS


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="this torch has no such tag")
def test_what_shows_tensors_of_a_graph_is_never_captured_in_a_cuda_graph():
    assert torch.Tag.cudagraph_unsafe in torch.ops.hookboard.show.default.tags
