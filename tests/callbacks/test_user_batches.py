"""Batches of the user's, and what their layers return, are read no more often with our callbacks."""

from collections import defaultdict
from collections.abc import Sequence

import pytest
from callbacks.user_program import IGNORED, Does, Effects, assert_the_same_is_seen
from torch import nn
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.filterwarnings(*IGNORED)

effect = Effects()


# Batches, and what layers return.


@effect
def a_batch_makes_what_it_has_not(user):
    user.data = [defaultdict(lambda: user.saw("made") or 0, x=batch) for batch in user.data]
    user.given = lambda batch: batch["x"] + batch["missing"]


@effect
def a_batch_is_a_sequence(user):
    class Items(Sequence):
        def __init__(self, *items):
            self.items = items

        def __getitem__(self, index):
            user.saw("item", index)
            return self.items[index]

        def __len__(self):
            user.saw("len")
            return len(self.items)

    user.data = [Items(batch, batch[:, :1]) for batch in user.data]
    user.given = lambda batch: batch[0]


@effect
def a_batch_loads_at_first_use(user):
    class Loads:
        def __init__(self, x):
            self.path = x

        def __getattr__(self, name):
            user.saw("asked for", name)
            if name != "x":
                raise AttributeError(name)
            self.x = self.path
            return self.x

        def to(self, device):
            user.saw("to")
            return self

        def __iter__(self):
            user.saw("iter")
            return iter([self.x])

        def __len__(self):
            user.saw("len")
            return 8

    user.data = [Loads(batch) for batch in user.data]
    user.given = lambda batch: batch.x


@effect
def a_batch_has_an_iterator(user):
    user.data = [{"x": batch, "numbers": iter(range(3)), "all": (n for n in range(3))} for batch in user.data]
    user.given = lambda batch: batch["x"] + next(batch["numbers"]) + next(batch["all"])


@effect
def a_batch_has_a_class_that_pytree_knows(user):
    if not hasattr(pytree, "_deregister_pytree_node"):
        pytest.skip("torch 2.6 has no way to take a class back from pytree")

    class Node:
        def __init__(self, x):
            self.x = x

    def flatten(node):
        user.saw("flatten")
        return [node.x], None

    if Node in pytree.SUPPORTED_NODES:
        pytree._deregister_pytree_node(Node)
    pytree.register_pytree_node(Node, flatten, lambda items, context: user.saw("unflatten") or Node(*items))
    user.data = list(map(Node, user.data))
    user.net.insert(0, Does(lambda node: node.x))
    user.at_end.append(lambda: pytree._deregister_pytree_node(Node))


@effect
def a_layer_takes_an_object_with_a_text(user):
    class Options:
        scale = 2.0

        def __repr__(self):
            user.saw("repr")
            return "Options"

        def __getattr__(self, name):
            user.saw("asked for", name)
            raise AttributeError(name)

        def __eq__(self, other):
            user.saw("eq")
            return self is other

        def __hash__(self):
            user.saw("hash")
            return 1

        def __iter__(self):
            user.saw("iter")
            return iter(())

    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Scales()

        def forward(self, x):
            return self.inner(x, options=Options())

    class Scales(nn.Module):
        def forward(self, x, options):
            return x * options.scale

    user.net.append(Takes())


@pytest.mark.parametrize(("make", "way"), effect.cases("in a Trainer"))
def test_user_code_sees_the_same_with_callbacks(make, way):
    assert_the_same_is_seen(make, way)
