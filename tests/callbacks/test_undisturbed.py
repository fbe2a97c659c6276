"""The run is the same, bit for bit, with and without the callbacks."""

import pytest
import torch
from torch import nn
from torchvision.models import resnet18
from toys import RecordsLoss, batches, fit

from hookboard import ActivationLogger, GradientLogger, ParameterLogger, Statistic
from hookboard.measure.statistics import DERIVED, FORMULAS


def trained(folder, make_net, data, callbacks):
    """All that a run leaves: SGD here has no momentum, so the weights hold what came before the last step."""
    torch.manual_seed(0)
    model = RecordsLoss(make_net())
    run = fit(folder, model, data, *callbacks)
    gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
    of_run = {"losses": torch.stack(model.losses), "step": torch.tensor(run.global_step)}
    return model.state_dict() | gradients | of_run | {"random state": torch.get_rng_state()}


def assert_undisturbed(folder, make_net, data, histogram=True, **options):
    every = {"every_n_steps": 1, "histogram": histogram, **options}
    watching = [
        ActivationLogger("**", roles=["output", "input"], **every),
        GradientLogger("**", roles=["grad_output", "grad_input", "parameter_grad"], **every),
        ParameterLogger(**every),
    ]
    bare = trained(folder / "bare", make_net, data, [])
    watched = trained(folder / "watched", make_net, data, watching)
    assert bare.keys() == watched.keys()
    for name, value in bare.items():
        assert value.equal(watched[name]), name


@pytest.mark.large
@pytest.mark.filterwarnings("ignore:hookboard. GradientLogger. [0-9]+ of [0-9]+ sites:UserWarning")
def test_some_steps_of_resnet18_with_every_module_watched(tmp_path):
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(2, 3, 32, 32, generator=generator) for _ in range(6)]
    assert_undisturbed(tmp_path, lambda: resnet18(num_classes=10), data, histogram=False)


class Attends(nn.Module):
    """One tensor on many edges, inside and beside the module: the order in which gradients are added shows."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        x = self.norm(x)
        return x + self.attention(x, x, x, need_weights=False)[0] + torch.tanh(x) * x


@pytest.mark.filterwarnings("ignore:hookboard. (Activation|Gradient)Logger. [0-9]+ of [0-9]+ sites:UserWarning")
def test_gradients_that_are_sums_are_added_in_the_same_order(tmp_path):
    data = list(torch.randn(5, 6, 3, 4))
    assert_undisturbed(tmp_path, lambda: nn.Sequential(Attends(), Attends()), data)


SAMPLED = Statistic("sampled", lambda x: x.flatten()[torch.randperm(x.numel())[:2]].mean())
CLAMPED = Statistic("clamped", lambda x: x.clamp_(-0.1, 0.1).abs().mean())


@pytest.mark.filterwarnings("ignore:hookboard. GradientLogger. [0-9]+ of [0-9]+ sites:UserWarning")
def test_all_statistics_and_those_of_the_user_that_draw_numbers_or_work_in_place(tmp_path):
    def dropping():
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 3))

    assert_undisturbed(tmp_path, dropping, batches(4, 4, 4), statistics=[*FORMULAS, *DERIVED, SAMPLED, CLAMPED])
