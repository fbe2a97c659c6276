import pytest
import torch

import hookboard.measure.graphs


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="this torch has no such tag")
def test_what_shows_tensors_of_a_graph_is_never_captured_in_a_cuda_graph():
    assert hookboard.measure.graphs
    assert torch.Tag.cudagraph_unsafe in torch.ops.hookboard.show.default.tags
