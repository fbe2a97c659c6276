"""Models with something unusual about them are compared, or refused with a plain message."""

import copy

import pytest
import torch
from comparing.nets import loss
from torch import nn

from hookboard import compare
from hookboard.comparing.distance import converted, distance

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Masked(nn.Module):
    def forward(self, x):
        return x.masked_fill(x > 1, torch.finfo(x.dtype).min)


def test_beside_the_smallest_numbers_of_a_mask_other_differences_are_seen():
    left = torch.tensor([1.0, torch.finfo(torch.float32).min])
    assert distance(left, torch.tensor([1.5, torch.finfo(torch.float32).min])).relative == 0.5


def test_the_largest_number_of_a_type_becomes_the_largest_of_another():
    given = torch.tensor([torch.finfo(torch.float32).min, 1.0, -torch.inf])
    assert converted(given, torch.float16).tolist() == [-65504.0, 1.0, -torch.inf]


class Uniform(nn.Module):
    """Attention that is nearly uniform: the gradient of its scores is what rounding leaves of a difference."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        for one in (self.q, self.k, self.v):
            nn.init.normal_(one.weight, std=0.002)

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (4, 8)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Forces(nn.Module):
    """Returns a gradient, so that its own gradient is one of second order."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.last(self.first(x).tanh()).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]


def test_gradients_of_gradients_are_compared():
    net = Forces()
    assert compare(net, copy.deepcopy(net).double(), X, loss=lambda y: y.float().square().mean()).differences == ()
    other = copy.deepcopy(net)
    other.last.weight.data *= 1.1
    assert compare(net, other, X, loss=lambda y: y.square().mean()).first.module == "last"


class KnowsOneType(nn.Module):
    def forward(self, x):
        return x @ torch.eye(8, dtype=torch.float32)


def test_a_model_that_cannot_run_in_the_other_precision_is_compared_by_noise_alone():
    net = nn.Sequential(nn.Linear(8, 8), KnowsOneType())
    other = copy.deepcopy(net).double()
    other[1] = nn.Identity()
    assert compare(net, other, X).differences == ()


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.func.vmap(self.inner)(x)


def test_a_module_inside_vmap_is_part_of_the_one_around_it():
    net = Mapped()
    other = copy.deepcopy(net)
    other.inner.bias.data += 1
    assert compare(net, copy.deepcopy(net), X, loss=loss).differences == ()
    assert compare(net, other, X).first.module == ""


def test_where_no_tensor_could_be_compared_it_says_so():
    net = nn.Identity()
    assert str(compare(net, net, ({"values": 3},))).startswith("Nothing was compared")


class Thresholds(nn.Module):
    """Masks numbers beyond a limit: rounding decides on those that are next to it."""

    def forward(self, x):
        return x.masked_fill(x > 1, -torch.inf)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_decision_that_rounding_may_turn_is_no_difference(dtype):
    x = X.clone()
    x[0] = 1 + 1e-8  # float32 has no number between
    x[1] = 1 + 2**-9  # nor has bfloat16
    net = nn.Sequential(nn.Identity(), Thresholds())
    net.weight = nn.Parameter(torch.ones(1))
    assert compare(net, copy.deepcopy(net).to(dtype), x.double()).differences == ()


class Experts(nn.Module):
    """A router that sends each row to two of eight experts."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 8, bias=False)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            mixed = mixed.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return x + mixed


def experts():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), Experts(), nn.LayerNorm(16), Experts()), torch.randn(64, 8)


def masked():
    return nn.Sequential(nn.Linear(8, 8), Masked(), nn.Softmax(-1)), X * 3


def uniform():
    return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), Uniform()), torch.randn(2, 9, 8)


def normed():
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)), torch.randn(64, 32, 8)


ROUNDED = {
    "a mask of the smallest number of a type": (masked, [torch.bfloat16, torch.float16, torch.float64]),
    "what a kernel rounds within itself": (uniform, [torch.bfloat16]),
    "gradients of a norm that are added up in half precision": (normed, [torch.bfloat16]),
    "rows that go to other experts": (experts, [torch.bfloat16, torch.float16, torch.float64]),
}


@pytest.mark.parametrize(
    ("what", "dtype"), [(what, dtype) for what, (_, dtypes) in ROUNDED.items() for dtype in dtypes]
)
def test_what_another_precision_rounds_is_no_difference(what, dtype):
    torch.manual_seed(0)
    net, x = ROUNDED[what][0]()
    other = copy.deepcopy(net).to(dtype)
    assert compare(net, other, x, loss=lambda y: y.float().square().mean()).differences == ()


def test_a_wrong_expert_is_found():
    net, x = experts()
    other = copy.deepcopy(net)
    other[3].experts[2].weight.data *= 1.05
    assert compare(net, other, x).first.module == "3.experts.2"


class Momentum(nn.Module):
    """Changes weights of its own in each call."""

    def __init__(self):
        super().__init__()
        self.net, self.slow = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        with torch.no_grad():
            for slow, weight in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                slow.data = 0.9 * slow.data + 0.1 * weight
        return self.net(x) + self.slow(x)


def test_weights_that_a_model_changes_itself_are_as_before_afterwards():
    net = nn.Sequential(Momentum(), nn.BatchNorm1d(4))
    other = copy.deepcopy(net).double()
    before = [copy.deepcopy(one.state_dict()) for one in (net, other)]
    own = [(each, each.dtype) for one in (net, other) for each in (*one.parameters(), *one.buffers())]
    assert compare(net, other, X, loss=loss).differences == ()
    torch.testing.assert_close([one.state_dict() for one in (net, other)], before, rtol=0, atol=0)
    after = [(each, each.dtype) for one in (net, other) for each in (*one.parameters(), *one.buffers())]
    assert all(one is each and dtype == kind for (one, dtype), (each, kind) in zip(own, after, strict=True))


def test_a_model_whose_weights_were_made_in_inference_mode_is_compared():
    with torch.inference_mode():
        net = nn.Linear(8, 4)
        other = copy.deepcopy(net)
        other.weight[0] *= 1.1
    assert compare(net, other, X).first.cause.startswith("its weight differs")


def test_weights_that_only_one_model_has_are_the_cause():
    net, other = nn.Sequential(nn.Linear(8, 4)), nn.Sequential(nn.Linear(8, 4, bias=False))
    other[0].weight = net[0].weight
    assert compare(net, other, X).first.cause == "its bias is missing from the right model"
    assert compare(other, net, X).first.cause == "its bias is missing from the left model"


def test_weights_that_are_shared_in_the_right_model_alone_are_told():
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    net[2].load_state_dict(net[0].state_dict())
    other = copy.deepcopy(net)
    other[2].weight = other[0].weight
    [found] = compare(net, other, X, loss=lambda y: y.square().mean()).differences
    tied = "it is tied to 0.weight in the right model, but a copy in the left model; training will make them diverge"
    assert found.cause == tied


def test_frozen_weights_are_the_cause_of_a_gradient_that_is_missing():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    other = copy.deepcopy(net)
    other[0].requires_grad_(False)
    assert "look for detach(), no_grad() or frozen weights" in compare(net, other, X, loss=loss).first.cause
    first = compare(other, net, X, loss=loss).first
    assert first.cause == "no gradient in the left model, where it is frozen or cut off"


class OtherDropout(nn.Dropout):
    """Draws other random numbers, as another version of torch does."""

    def forward(self, x):
        return x * (torch.rand(x.shape, dtype=torch.float64) > self.p) / (1 - self.p)


OtherDropout.__name__ = "Dropout"


def test_dropout_that_draws_other_numbers_is_named_with_a_way_out():
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    other = nn.Sequential(net[0], OtherDropout(0.5))
    first = compare(net, other, X).first
    assert first.module == "1"
    assert "draws random numbers" in first.cause


def test_complex_weights_and_inputs_are_compared_in_two_precisions():
    net = nn.Linear(8, 4, dtype=torch.complex64)
    other = nn.Linear(8, 4, dtype=torch.complex128)
    other.load_state_dict(net.state_dict())
    assert compare(net, other, X.to(torch.complex64)).differences == ()
    other.weight.data[0] *= 1.001
    assert compare(net, other, X.to(torch.complex64)).first.cause.startswith("its weight differs")


@pytest.mark.parametrize(
    ("device", "inputs", "options", "error", "said"),
    [
        ("meta", X, {}, ValueError, "right has weights without values"),
        ("cpu", X, {"loss": lambda y: 1.0}, TypeError, "loss must return a tensor; got float"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_its_name(device, inputs, options, error, said):
    with pytest.raises(error, match=said):
        compare(nn.Linear(8, 8), nn.Linear(8, 8).to(device), inputs, **options)


def two_layers(inside, outside):
    return nn.Sequential(nn.Linear(8, inside), nn.ReLU(), nn.Linear(inside, outside))


def test_outputs_of_other_shapes_are_told_with_both_shapes_and_no_number():
    *_, head = map(str, compare(two_layers(6, 3), two_layers(6, 5), X).differences)
    assert head.startswith("2 (output): shape (4, 3) vs. (4, 5); its weight has shape (3, 6) vs. (5, 6)")
