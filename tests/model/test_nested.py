import types
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Mapping, MutableMapping
from dataclasses import InitVar, dataclass, field, fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookboard.model.nested import can_be_filled, map_tensors, tensors_in

X = torch.zeros(1)
Point = namedtuple("Point", "x y")


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (X, [""]),
        ((X, X), ["0", "1"]),
        ([X, None, X], ["0", "2"]),
        ({"a": X, "b": (X, X)}, ["a", "b/0", "b/1"]),
        (OrderedDict(last=X), ["last"]),
        (Point(X, X), ["x", "y"]),
        (Output(X), ["logits"]),
        (Output, []),
        ("text", []),
    ],
)
def test_tensors_are_found_under_their_index_or_key(value, paths):
    assert [path for path, _ in tensors_in(value)] == paths


# The same structure with other tensors.


@dataclass
class Lazy:
    given: Tensor
    made: Tensor = field(init=False)

    def __post_init__(self):
        self.made = self.given * 10


@dataclass(slots=True)
class UnsetSlotted:
    given: Tensor
    later: Tensor = field(init=False)


class TripledItems(OrderedDict):
    """Copies of it are made by its constructor."""

    def __init__(self, **items):
        super().__init__({key: tensor * 3 for key, tensor in items.items()})

    def __reduce__(self):
        return lambda items: type(self)(**items), (dict(self),)


@dataclass(frozen=True)
class Frozen:
    tensor: Tensor
    name: str = "frozen"


@dataclass
class Scaled:
    tensor: Tensor
    factor: InitVar[float]

    def __post_init__(self, factor):
        self.tensor = self.tensor * factor


@dataclass
class ModelOutput(OrderedDict):
    """As Hugging Face's models return: items and attributes are the same."""

    logits: Tensor | None = None
    loss: Tensor | None = None

    def __post_init__(self):
        for each in fields(self):
            if getattr(self, each.name) is not None:
                OrderedDict.__setitem__(self, each.name, getattr(self, each.name))

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __reduce__(self):
        return type(self), (self.logits, self.loss)


class Named(dict):
    def __init__(self, name, **items):
        super().__init__(items)
        self.name = name


class Wraps(MutableMapping):
    """Copies share what they hold."""

    def __init__(self, items):
        self.items_held = items

    def __getitem__(self, key):
        return self.items_held[key]

    def __setitem__(self, key, value):
        self.items_held[key] = value

    def __delitem__(self, key):
        del self.items_held[key]

    def __iter__(self):
        return iter(self.items_held)

    def __len__(self):
        return len(self.items_held)


VALUES: dict[str, Any] = {
    "dict": lambda: {"a": X, 2: X},
    "nested": lambda: {"a": [X, (X, {"b": X})]},
    "default": lambda: defaultdict(list, a=X),
    "own arguments": lambda: Named("me", a=X),
    "shares": lambda: Wraps({"a": X}),
    "read only": lambda: types.MappingProxyType({"a": X}),
    "named tuple": lambda: Point(X, 2),
    "what torch.max returns": lambda: torch.max(torch.zeros(2, 2), 0),
    "packed": lambda: nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)]),
    "init=False": lambda: Lazy(X),
    "frozen": lambda: Frozen(X),
    "InitVar": lambda: Scaled(X, 3.0),
    "slot never set": lambda: UnsetSlotted(X),
    "items changed by its constructor": lambda: TripledItems(a=X),
    "both": lambda: ModelOutput(logits=X),
}


def contents(value):
    return [(path, tensor.tolist()) for path, tensor in tensors_in(value)]


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_a_structure_stays_the_same_with_other_tensors_in_it_and_the_very_same_where_nothing_changes(make):
    value = make()
    before = contents(value)
    changed = map_tensors(lambda tensor: tensor + 1, value)
    assert type(changed) is type(value)
    expected = [(path, (tensor + 1).tolist()) for path, tensor in tensors_in(value)]
    assert contents(changed) == expected
    assert changed is not value
    assert contents(value) == before, "the caller's own was changed"
    assert map_tensors(lambda tensor: tensor, value) is value


@pytest.mark.parametrize("value", [torch.Size([2, 3]), "text", None, 3.0, Output, [], ()])
def test_what_holds_no_tensor_is_left_alone(value):
    assert map_tensors(lambda tensor: tensor + 1, value) is value


def test_what_a_container_holds_besides_is_kept():
    assert map_tensors(lambda x: x + 1, VALUES["default"]()).default_factory is list
    assert map_tensors(lambda x: x + 1, VALUES["own arguments"]()).name == "me"
    assert map_tensors(lambda x: x + 1, VALUES["frozen"]()).name == "frozen"


@pytest.mark.parametrize("make", [Lazy, lambda x: TripledItems(a=x), lambda x: Scaled(x, 3.0)])
def test_no_constructor_changes_the_new_tensors(make):
    changed = map_tensors(lambda tensor: torch.full_like(tensor, 7.0), make(X))
    assert {tensor.item() for _, tensor in tensors_in(changed)} == {7.0}


def test_items_that_are_attributes_too_stay_one():
    changed = map_tensors(lambda x: x + 1, ModelOutput(logits=X))
    assert changed.logits is changed["logits"]
    assert changed.loss is None


class Closed(Mapping):
    """Takes no items."""

    def __getitem__(self, key):
        return {"a": X}[key]

    def __iter__(self):
        return iter(["a"])

    def __len__(self):
        return 1


def test_a_container_that_cannot_be_made_anew_is_named():
    with pytest.raises(TypeError, match="an object of type Closed cannot be rebuilt with other tensors in it"):
        map_tensors(lambda x: x + 1, Closed())


TRACED = ["dict", "nested"]


@pytest.mark.compiles
@pytest.mark.parametrize("name", TRACED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's, where it compiles
def test_common_structures_can_be_traced_in_one_graph(name):
    @torch.compile(backend="eager", fullgraph=True)
    def run(value):
        return map_tensors(lambda tensor: tensor + 1, value)

    value = VALUES[name]()
    assert can_be_filled(value)
    assert contents(run(value)) == contents(map_tensors(lambda tensor: tensor + 1, value))


@pytest.mark.parametrize("name", [name for name in VALUES if name not in TRACED])
def test_what_code_of_its_class_would_have_to_make_is_not_filled_in_a_graph(name):
    value = VALUES[name]()
    assert not can_be_filled(value)
    assert not can_be_filled([{"deep": value}])


@pytest.mark.parametrize("value", [X, None, [None, "text"], Closed, torch.Size([2]), UserDict(a=1)])
def test_what_needs_no_filling_can_be_filled(value):
    assert can_be_filled(value)
