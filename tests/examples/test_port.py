import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "port.py"


def test_both_mistakes_of_the_port_are_found_in_each_layer_and_nothing_else():
    found, mended = runpy.run_path(str(EXAMPLE))["main"]()
    wanted = [f"layers.{k}.{where}" for k in range(3) for where in ("o_proj (input)", "act (output)")]
    assert [str(one.spot) for one in found.differences] == wanted
    assert mended.differences == ()
    assert len(found.names) == 34
