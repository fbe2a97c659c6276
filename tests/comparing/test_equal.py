"""Two models that are the same up to rounding have no difference, and both are left as they were."""

import copy
from collections import OrderedDict

import pytest
import torch
from comparing.nets import INPUTS, ConvNet, Recurrent, Transformer, loss, model, planted
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from hookboard import compare

KINDS = [ConvNet, Recurrent, Transformer]


def is_equal(found):
    assert found.differences == ()
    return True


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_another_precision_are_equal_up_to_rounding(kind, dtype):
    net = model(kind)
    assert is_equal(compare(net, copy.deepcopy(net).to(dtype), INPUTS[kind], loss=lambda output: loss(output.float())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_mistake_is_found_in_another_precision_too(dtype):
    net = model(Transformer)
    other = planted(net, lambda n: setattr(n.blocks[1], "act", nn.ReLU())).to(dtype)
    [found] = compare(net, other, INPUTS[Transformer]).differences
    assert str(found.spot) == "blocks.1.act (output)"


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_and_norms_in_training_draw_and_see_the_same(kind):
    net = model(kind, training=True)
    assert is_equal(compare(net, copy.deepcopy(net), INPUTS[kind], loss=loss))


class Attends(nn.Module):
    def __init__(self, backend):
        super().__init__()
        self.project, self.out, self.backend = nn.Linear(16, 48), nn.Linear(16, 16), backend

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        with sdpa_kernel(self.backend):
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Checkpointed(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, tokens):
        return checkpoint(self.net, tokens, use_reentrant=False)


def by_another_kernel():
    net = Attends(SDPBackend.MATH)
    other = planted(net, lambda n: setattr(n, "backend", SDPBackend.FLASH_ATTENTION))
    return net, other, torch.randn(3, 9, 16), {}


def in_another_memory_format():
    net = model(ConvNet)
    return net, copy.deepcopy(net).to(memory_format=torch.channels_last), INPUTS[ConvNet], {}


def computed_again_in_the_backward_pass():
    net = model(Transformer)
    return net, Checkpointed(copy.deepcopy(net)), INPUTS[Transformer], {"names": {"blocks": "net.blocks"}}


@pytest.mark.parametrize("make", [by_another_kernel, in_another_memory_format, computed_again_in_the_backward_pass])
def test_the_same_model_is_equal_up_to_rounding(make):
    net, other, inputs, options = make()
    assert is_equal(compare(net, other, inputs, loss=loss, **options))


class Reordered(nn.Module):
    """Runs a model on the samples in another order, and puts what it returns back."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, tokens):
        order = torch.arange(len(tokens)).flip(0)
        return self.net(tokens[order])[order]


@pytest.mark.parametrize("kind", [ConvNet, Transformer])
def test_a_model_that_permutes_its_batch_and_back_is_equal_as_a_whole(kind):
    net = model(kind)
    other = Reordered(copy.deepcopy(net))
    assert is_equal(compare(net, other, INPUTS[kind], loss=loss, names={}))
    other.net.head.weight.data[0] *= 1.1
    assert str(compare(net, other, INPUTS[kind], names={}).first.spot) == "the whole model (output)"


class Few(nn.Module):
    """Few layers, as inductor has C++ compiled for each: seconds, where nothing is cached."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.act, self.head = nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.act(self.norm(self.up(x))))


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:Skipping serialization of skipfiles")  # of torch 2.6's inductor
def test_a_compiled_model_is_compared_as_a_whole():
    net, x = model(Few), torch.randn(6, 4)
    found = compare(net, torch.compile(copy.deepcopy(net)), x, loss=loss)
    assert is_equal(found)
    assert {row.spot.module for row in found.rows} == {""}
    wrong = torch.compile(planted(net, lambda n: n.norm.weight.mul_(0.9)))
    assert compare(net, wrong, x).first.module == ""


@pytest.mark.compiles
def test_a_difference_after_a_block_that_is_compiled_in_place_says_that_it_cannot_be_seen():
    net = model(Transformer)
    other = planted(net, lambda n: setattr(n.blocks[1], "residual", 0.9))
    other.blocks[1].compile(backend="aot_eager")
    right = nn.Sequential(OrderedDict(net=other))
    first = compare(net, right, INPUTS[Transformer], names={"**": "net.**"}).first
    assert str(first.spot) == "blocks.2 (input)"
    assert "blocks.1 did not run in the right model, or cannot be seen there" in first.cause


def test_a_model_of_transformers_is_equal_in_half_and_in_double():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
    net = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    tokens = torch.randint(3, 50, (2, 7))
    inputs = {"input_ids": tokens, "decoder_input_ids": tokens}
    for dtype in (torch.bfloat16, torch.float64):
        other = copy.deepcopy(net).to(dtype)
        assert is_equal(compare(net, other, inputs, loss=lambda output: output.logits.float().square().mean()))


def state_of(net):
    tensors = [tensor.detach().clone() for tensor in (*net.parameters(), *net.buffers())]
    gradients = [None if one.grad is None else one.grad.clone() for one in net.parameters()]
    modes = [module.training for module in net.modules()]
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())
    return tensors, gradients, modes, hooks, torch.get_rng_state()


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_the_grad_mode_is_as_before(grad_mode):
    net = nn.Linear(2, 2)
    with grad_mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        compare(net, net, torch.ones(1, 2), loss=loss)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_behind_in_either_model(kind):
    net = model(kind, training=True)
    other = planted(net, lambda n: None)
    loss(net(INPUTS[kind])).backward()
    before = [state_of(net), state_of(other)]
    compare(net, other, INPUTS[kind], loss=loss)
    torch.testing.assert_close([state_of(net), state_of(other)], before, rtol=0, atol=0)


def test_after_an_error_in_a_model_nothing_is_left_behind_either():
    net = model(ConvNet, training=True)
    other = planted(net, lambda n: setattr(n, "over", 7))
    before = [state_of(net), state_of(other)]
    with pytest.raises(IndexError):
        compare(net, other, INPUTS[ConvNet])
    torch.testing.assert_close([state_of(net), state_of(other)], before, rtol=0, atol=0)


class Ported(nn.Module):
    """The convolutional net with other names and in another order of definition."""

    def __init__(self, net):
        super().__init__()
        self.classifier = copy.deepcopy(net.head)
        self.stem = nn.Sequential(copy.deepcopy(net.conv1), copy.deepcopy(net.norm1), nn.ReLU())
        self.branch = nn.Sequential(copy.deepcopy(net.conv2), copy.deepcopy(net.norm2))
        self.reduce = nn.MaxPool2d(2)

    def forward(self, images):
        x = self.stem(images)
        return self.classifier(self.reduce((x + self.branch(x)).relu()).mean((2, 3)))


def test_modules_with_other_names_are_matched_by_order_and_shape():
    net = model(ConvNet)
    other = Ported(net)
    found = compare(net, other, INPUTS[ConvNet])
    assert is_equal(found)
    wanted = {"stem.0": "conv1", "stem.1": "norm1", "branch.0": "conv2", "branch.1": "norm2", "classifier": "head"}
    assert wanted.items() <= found.names.items()
    other.branch[1].eps = 1e-2
    assert compare(net, other, INPUTS[ConvNet]).first.module == "norm2"


def test_names_can_be_given_by_patterns():
    class Renamed(Transformer):
        def __init__(self):
            super().__init__()
            self.layer = self.blocks
            del self.blocks

        def forward(self, tokens):
            x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
            return self.head(self.norm(self.layer(x)))

    net, other = model(Transformer), nn.Sequential(OrderedDict(net=model(Renamed)))
    other.net.layer[2].act = nn.ReLU()
    names = {"blocks.*": "net.layer.*", "blocks": "net.layer", "*": "net.*"}
    [found] = compare(net, other, INPUTS[Transformer], names=names).differences
    assert str(found.spot) == "blocks.2.act (output)"


def test_a_pattern_that_matches_nothing_is_told_with_the_closest_name():
    net = model(Transformer)
    with pytest.raises(ValueError, match=r"block.*did you mean 'blocks"):
        compare(net, copy.deepcopy(net), INPUTS[Transformer], names={"block.0": "blocks.0"})


@pytest.mark.parametrize(
    ("given", "said"), [({"loss": 3}, "loss must be a function.*got 3"), ({"names": "a"}, "names")]
)
def test_an_argument_of_another_kind_is_told_by_its_name(given, said):
    net = model(ConvNet)
    with pytest.raises(TypeError, match=said):
        compare(net, copy.deepcopy(net), INPUTS[ConvNet], **given)


def test_a_prompt_shows_a_comparison_in_words():
    net = nn.Sequential(nn.Linear(2, 2))
    found = compare(net, copy.deepcopy(net), torch.ones(1, 2))
    assert repr(found) == str(found) == "Equal up to rounding: 4 tensors of 2 modules were compared."


def test_without_inputs_it_is_said_what_is_missing_before_a_model_runs():
    net = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"inputs= is missing: .* compare\(left, right, batch\)"):
        compare(net, copy.deepcopy(net))
