"""The share of a parameter that an optimizer step did not change."""

import pytest
import torch
from toys import Toy, batches, fit, mlp

from hookboard import ParameterLogger


class Keeps(Toy):
    """The parameters before and after each step."""

    def __init__(self, net, rate):
        super().__init__(net)
        self.rate, self.seen = rate, [self.copies()]

    def copies(self):
        return {name: p.detach().clone() for name, p in self.named_parameters()}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.append(self.copies())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_the_unchanged_share_is_that_of_equal_elements_before_and_after(tmp_path, rate):
    model = Keeps(mlp().bfloat16(), rate)
    logger = ParameterLogger(statistics="unchanged_fraction")
    fit(tmp_path, model, [b.bfloat16() for b in batches(4)], logger)
    before, after = model.seen
    found = {r.site.name: r.statistics for r in logger.readings if r.site.role == "parameter_update"}
    for name, values in found.items():
        assert values == {"unchanged_fraction": (before[name] == after[name]).double().mean().item()}
    assert any(0 < values["unchanged_fraction"] < 1 for values in found.values()) == (rate > 0)
