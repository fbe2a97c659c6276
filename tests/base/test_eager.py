"""Contexts in which compiled code runs uncompiled."""

import pytest
import torch
from toys import compiler_stance

from hookboard.base.torch_private import run_eagerly

pytestmark = pytest.mark.compiles


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    assert compiler_stance() == "default"


@pytest.fixture
def runs_compiled():
    """Tells whether a compiled function runs from its graph."""
    runs = []

    def backend(graph, inputs):
        def run(*args):
            runs.append(1)
            return graph.forward(*args)

        return run

    compiled = torch.compile(lambda x: x + 1, backend=backend)

    def ask():
        runs.clear()
        compiled(torch.ones(1))
        return bool(runs)

    return ask


def test_compiled_code_runs_uncompiled_inside_and_compiled_after(runs_compiled):
    assert runs_compiled()
    with run_eagerly():
        assert not runs_compiled()
    assert runs_compiled()


@pytest.mark.parametrize("first", [0, 1])
def test_two_contexts_may_be_left_in_any_order(first, runs_compiled):
    contexts = [run_eagerly(), run_eagerly()]
    for context in contexts:
        context.__enter__()
    contexts[first].__exit__(None, None, None)
    assert not runs_compiled()
    contexts[1 - first].__exit__(None, None, None)
    assert runs_compiled()


def test_a_stance_that_the_user_had_set_before_is_there_again():
    with torch.compiler.set_stance("eager_on_recompile"):
        with run_eagerly(), run_eagerly():
            assert compiler_stance() == "force_eager"
        assert compiler_stance() == "eager_on_recompile"


def test_a_user_who_runs_everything_eagerly_goes_on_to():
    with torch.compiler.set_stance("force_eager"):
        with run_eagerly():
            pass
        assert compiler_stance() == "force_eager"


def test_an_error_inside_ends_the_context():
    with pytest.raises(ValueError, match="on purpose"), run_eagerly():
        raise ValueError("on purpose")
    assert compiler_stance() == "default"
