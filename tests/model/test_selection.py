"""Which modules patterns and types select, and patterns in messages: as few names as say the same."""

from random import Random

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torchmetrics import MeanMetric

from hookboard.model.patterns import folded, matched
from hookboard.model.selection import select


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 2, 3)
        self.relu = nn.ReLU6()

    def forward(self, x):
        return self.relu(self.conv1(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(Block(), Block())
        self.layer2 = nn.Sequential(Block())
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.heads = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
        self.accuracy = MeanMetric()

    def forward(self, x):
        return x


NET = Net()
LEAVES = [
    *["layer1.0.conv1", "layer1.0.relu", "layer1.1.conv1", "layer1.1.relu"],
    *["layer2.0.conv1", "layer2.0.relu", "conv1", "heads.0", "heads.1"],
]


@pytest.mark.parametrize(
    ("modules", "types", "selected"),
    [
        (None, None, LEAVES),
        ("conv1", None, ["conv1"]),
        ("layer*", None, ["layer1", "layer2"]),
        ("layer*.**", "Conv2d", ["layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv1"]),
        ("**.conv1", None, ["layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv1", "conv1"]),
        ("layer1.**.relu", None, ["layer1.0.relu", "layer1.1.relu"]),
        (["layer2.**", "conv1"], None, ["layer2.0", "layer2.0.conv1", "layer2.0.relu", "conv1"]),
        (["layer1.**", "!layer1.0.**"], "Conv2d", ["layer1.1.conv1"]),
        ("!layer*.**", None, ["conv1", "heads.0", "heads.1"]),
        (r"re:layer[12]\.0", None, ["layer1.0", "layer2.0"]),
        (None, "Linear", ["heads.0", "heads.1"]),
        (None, nn.Linear, ["heads.0", "heads.1"]),
        (None, "torch.nn.Linear", ["heads.0", "heads.1"]),
        (None, ["Linear", "Block"], ["layer1.0", "layer1.1", "layer2.0", "heads.0", "heads.1"]),
        (None, "Hardtanh", ["layer1.0.relu", "layer1.1.relu", "layer2.0.relu"]),
        (None, ["Hardtanh", "Linear", "!ReLU6"], ["heads.0", "heads.1"]),
    ],
)
def test_patterns_and_types_select(modules, types, selected):
    assert list(select(NET, modules, types)) == selected


def test_default_for_parameters_is_every_module_that_owns_some():
    class Token(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.zeros(1))
            self.body = nn.Sequential(nn.Linear(1, 1), nn.ReLU())

    root = nn.Sequential(Token())
    assert list(select(root, owning="parameters")) == ["0", "0.body.0"]


@pytest.mark.parametrize(
    ("modules", "types", "message"),
    [
        ("layr1.**", None, r"unknown module 'layr1\.\*\*'"),
        ("conv2", None, "'conv2'; did you mean 'conv1'"),
        ("!conv2", None, "'conv2'; did you mean 'conv1'"),
        (None, "Conv3d", "types: unknown type 'Conv3d'; did you mean 'Conv2d'"),
        (None, "!Conv3d", "unknown type 'Conv3d'"),
        (None, nn.Conv3d, "unknown type 'Conv3d'"),
        ("heads", None, "modules='heads' selects no module: none with a forward of its own to hook matches"),
        ("conv1", "Linear", "modules='conv1', types='Linear' selects no module"),
        ("re:(", None, r"modules: 're:\(' is not a regular expression"),
        (nn.Linear, None, "a class belongs in types="),
    ],
)
def test_what_selects_nothing_is_an_error_that_helps(modules, types, message):
    with pytest.raises(ValueError, match=message):
        select(NET, modules, types)


def test_selecting_parameters_of_modules_without_any_is_an_error():
    with pytest.raises(ValueError, match="selects no module: none with parameters of its own matches"):
        select(NET, "**.relu", owning="parameters")


def test_a_shared_module_is_selected_once():
    shared = nn.Linear(1, 1)
    assert list(select(nn.Sequential(shared, nn.ReLU(), shared))) == ["0", "1"]


@pytest.mark.compiles
def test_names_do_not_show_what_compile_wraps():
    root = nn.Module()
    root.net = torch.compile(nn.Sequential(nn.Linear(1, 1)))
    assert list(select(root)) == ["net.0"]
    assert select(root, "net")["net"] is root.net._orig_mod


def test_a_model_that_is_one_layer_is_selected_under_no_name():
    net = nn.Linear(2, 1)
    assert select(net) == select(net, types="Linear") == {"": net}


def test_a_layer_that_keeps_its_weights_in_a_list_is_a_leaf():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.vars = nn.ParameterList([nn.Parameter(torch.ones(1, 4))])

        def forward(self, x):
            return nn.functional.linear(x, self.vars[0])

    assert list(select(nn.Sequential(Own(), nn.ReLU()))) == ["0", "1"]


def test_a_reparametrized_layer_is_still_a_leaf():
    root = nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 2)))
    assert list(select(root)) == ["0"]


LAYERS = [f"layers.{i}.{part}" for i in range(12) for part in ("attn", "mlp.0", "mlp.1")]


@pytest.mark.parametrize(
    ("names", "among", "said"),
    [
        ([f"layers.{i}.attn" for i in range(12)], LAYERS, "layers.*.attn (12)"),
        ([f"layers.{i}.attn" for i in range(11)], LAYERS[:6], "layers.*.attn (11)"),
        (["layers.0.attn", "layers.1.attn"], LAYERS, "layers.0.attn, layers.1.attn"),
        (["layers.0.mlp.0", "layers.0.mlp.1"], LAYERS, "layers.0.mlp.* (2)"),
        ([n for n in LAYERS if "mlp" in n], LAYERS, "layers.*.mlp.* (24)"),
        (["head", *(f"layers.{i}.attn" for i in range(12))], [*LAYERS, "head"], "head, layers.*.attn (12)"),
        (["layers.0", "layers.1"], ["layers.final"], "layers.0, layers.1"),
        (["layers.0", "layers.1", "layers.final"], [], "layers.* (3)"),
        (["0", "1"], ["", "0.weight"], "* (2)"),
        (["other.0", "other.1"], ["other.0", "other.1", "other.2"], "other.0, other.1"),
        ([], LAYERS, ""),
    ],
)
def test_names_that_differ_in_numbers_alone_are_one_if_all_such_are_meant(names, among, said):
    assert folded(names, among) == said


def test_what_is_left_is_cut_after_a_dozen():
    assert folded([f"part{i}" for i in range(20)]).endswith("part11 and 8 more")


def by_definition(pattern, name):
    """Whether a pattern matches a name: what each part may stand for, tried one after another."""
    if not pattern:
        return not name
    if pattern.startswith("**."):
        rests = [name, *(name[i + 1 :] for i in range(1, len(name)) if name[i] == ".")]
        return any(by_definition(pattern[3:], rest) for rest in rests)
    if pattern.startswith("**"):
        return any(by_definition(pattern[2:], name[i:]) for i in range(len(name) + 1))
    if pattern.startswith("*"):
        return any(by_definition(pattern[1:], name[i:]) for i in range(len(name.partition(".")[0]) + 1))
    return name[:1] == pattern[0] and by_definition(pattern[1:], name[1:])


def test_patterns_match_what_they_are_defined_to_match():
    random = Random(0)
    names = ["".join(random.choices("ab.\n", k=random.randrange(7))) for _ in range(60)]
    for _ in range(600):
        pattern = "".join(random.choices(["a", "b", ".", "*", "**", "**."], k=random.randrange(6)))
        meant = [name for name in names if by_definition(pattern, name) and (name or pattern != "*")]
        assert matched(pattern, names) == meant, pattern
