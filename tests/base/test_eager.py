"""Contexts in which compiled code runs uncompiled."""

import pytest
import torch
from toys import compiler_stance

from hookboard.base.torch_private import run_eagerly


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


@pytest.mark.compiles
@pytest.mark.parametrize("first", [0, 1])
def test_compiled_code_runs_uncompiled_until_the_last_of_two_contexts_is_left(first, runs_compiled):
    assert runs_compiled()
    contexts = [run_eagerly(), run_eagerly()]
    for context in contexts:
        context.__enter__()
    contexts[first].__exit__(None, None, None)
    assert not runs_compiled()
    contexts[1 - first].__exit__(None, None, None)
    assert runs_compiled()


@pytest.mark.parametrize("stance", ["default", "eager_on_recompile", "force_eager"])
def test_a_stance_that_the_user_had_set_before_is_there_again(stance):
    with torch.compiler.set_stance(stance):
        with run_eagerly(), run_eagerly():
            assert compiler_stance() == "force_eager"
        assert compiler_stance() == stance
        with pytest.raises(ValueError, match="on purpose"), run_eagerly():
            raise ValueError("on purpose")
        assert compiler_stance() == stance
