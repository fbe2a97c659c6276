"""AutoTrainer's programs: its demonstrations, and models that it made at random and counted as faulty.

The models are nets of five units a layer on two numbers, of which one kind each is ported. The fix of each is the first
repair of AutoTrainer that learns: SELU with LeCun's weights in place of the hidden activations.
"""

from benchmarks.programs.parts import accuracy, adam, bit_accuracy, sgd, stack, tensors
from benchmarks.programs.program import Program, post
from sklearn.datasets import make_blobs, make_circles  # type: ignore[import-untyped]  # has no stubs
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name

AUTOTRAINER = "shiningrain/AUTOTRAINER@03a463e:{}"
AUTOTRAINER_MODELS = "DeepDiagnosis/ICSE2022@500b017:AUTOTRAINER Model Code/{}"
"""AutoTrainer's own models, which it published as weights, written out as code by the authors of DeepDiagnosis."""

UNTRAINED_SIGNAL = ("vanishing_gradient", "activation_scale", "dead_units")
"""What is right of layers whose first weights are so small that no signal passes."""


def circles() -> tuple[Tensor, Tensor]:
    drawn = make_circles(n_samples=1000, noise=0.1, random_state=1)
    inputs, targets = tensors(drawn[0][:700], drawn[1][:700, None])
    return inputs, targets.float()


def blobs() -> tuple[Tensor, Tensor]:
    drawn = make_blobs(n_samples=1000, centers=3, n_features=2, cluster_std=2, random_state=2)
    return tensors(drawn[0][:700], drawn[1][:700])


# Demonstrations


@post(
    "AutoTrainer: oscillating",
    AUTOTRAINER.format("AutoTrainer/demo_case/Oscillating_Loss_Case"),
    fault="SGD with momentum 0.9 and a rate of 0.01 takes a step for each single sample.",
    fix="Adam, the tool's first repair.",
    port="Nothing: scikit-learn's blobs; 3000 steps of 140,000.",
    causes=("learning_rate", "update_too_large"),
)
def single_samples(fixed: bool) -> Program:
    inputs, labels = blobs()
    net = stack(2, 50, "relu", 3, init=["he", "glorot"])
    optimizer = adam() if fixed else sgd(0.01, 0.9)
    return Program(net, F.cross_entropy, inputs, labels, optimizer, 1, 3000, accuracy)


@post(
    "AutoTrainer: vanishing",
    AUTOTRAINER.format("AutoTrainer/demo_case/Gradient_Vanish_Case"),
    fault="Eight layers of five sigmoids pass hardly any gradient to the first.",
    fix="SELU, the tool's first repair.",
    port="Nothing: scikit-learn's circles; 1800 steps.",
    causes=("vanishing_gradient",),
)
def deep_sigmoids(fixed: bool) -> Program:
    drawn = make_circles(n_samples=1000, noise=0.1, random_state=1)
    inputs, targets = tensors(drawn[0][:700], drawn[1][:700, None])
    hidden = (5, "selu" if fixed else "sigmoid") * 8
    net = stack(2, *hidden, 1, "sigmoid", init="he")
    return Program(net, F.binary_cross_entropy, inputs, targets.float(), adam(), 128, 1800, bit_accuracy)


# Models made at random


def on_circles(activation: str, init: str, depth: int, fixed: bool) -> Program:
    inputs, targets = circles()
    net = of_fives(activation, init, depth, 1, fixed)
    return Program(net, keras_binary_cross_entropy, inputs, targets, adam(), 128, 1800, bit_accuracy)


def on_blobs(activation: str, init: str, depth: int, fixed: bool) -> Program:
    inputs, labels = blobs()
    net = of_fives(activation, init, depth, 3, fixed)
    return Program(net, keras_cross_entropy, inputs, labels, adam(), 128, 1800, accuracy)


def of_fives(activation: str, init: str, depth: int, outputs: int, fixed: bool) -> nn.Sequential:
    hidden = (5, "selu" if fixed else activation) * depth
    return stack(2, *hidden, outputs, "sigmoid", init=["lecun" if fixed else init] * depth + ["he"])


def keras_binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Keras's, written out, as it takes NaN, which torch's refuses."""
    outputs = outputs.clamp(1e-7, 1 - 1e-7)
    return -(targets * outputs.log() + (1 - targets) * (1 - outputs).log()).mean()


def keras_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Keras's categorical cross entropy, which divides outputs by their sum, so that sigmoids may give them."""
    shares = outputs / outputs.sum(-1, keepdim=True)
    return F.nll_loss(shares.clamp(1e-7, 1 - 1e-7).log(), labels)


def made_at_random(file: str, model: str) -> str:
    return AUTOTRAINER_MODELS.format(f"{file}, {model}")


SETTINGS = "The settings of the tool's demonstration: Adam, 128 samples; 1800 steps."
REPAIR = "SELU with LeCun's weights, the tool's first repair."


@post(
    "AutoTrainer: circle, exponentials",
    made_at_random("Models_Circle.py", "model_0ae2cd88"),
    fault="Eight layers of exponentials blow up what they pass on.",
    fix=REPAIR,
    port=SETTINGS,
    causes=("exploding_gradient", "nonfinite", "activation_scale"),
)
def circle_exponentials(fixed: bool) -> Program:
    return on_circles("exponential", "he", 8, fixed)


@post(
    "AutoTrainer: circle, tiny weights",
    made_at_random("Models_Circle.py", "model_c54b3d2e"),
    fault="Weights of at most 0.05 in nine layers of ReLUs pass no signal.",
    fix=REPAIR,
    port=SETTINGS,
    causes=UNTRAINED_SIGNAL,
)
def circle_tiny_weights(fixed: bool) -> Program:
    return on_circles("relu", "uniform", 9, fixed)


@post(
    "AutoTrainer: circle, 16 ReLUs",
    made_at_random("Models_Circle.py", "model_8e28bdef"),
    fault="16 layers of five ReLUs die.",
    fix=REPAIR,
    port=SETTINGS + " They die on seed 1, of three.",
    seed=1,
    causes=("dead_units", "vanishing_gradient", "no_gradient"),
)
def circle_16_relus(fixed: bool) -> Program:
    return on_circles("relu", "he", 16, fixed)


@post(
    "AutoTrainer: circle, 13 sigmoids",
    made_at_random("Models_Circle.py", "model_dd8c879b"),
    fault="13 layers of five sigmoids pass hardly any gradient to the first.",
    fix=REPAIR,
    port=SETTINGS,
    causes=("vanishing_gradient",),
)
def circle_13_sigmoids(fixed: bool) -> Program:
    return on_circles("sigmoid", "he", 13, fixed)


@post(
    "AutoTrainer: blob, exponentials",
    made_at_random("Models_Blob.py", "model_0448d813"),
    fault="Eight layers of exponentials blow up what they pass on.",
    fix=REPAIR,
    port=SETTINGS,
    causes=("exploding_gradient", "nonfinite", "activation_scale"),
)
def blob_exponentials(fixed: bool) -> Program:
    return on_blobs("exponential", "he", 8, fixed)


@post(
    "AutoTrainer: blob, tiny weights",
    made_at_random("Models_Blob.py", "model_f7e7b91b"),
    fault="Weights of at most 0.05 in nine layers of ReLUs pass no signal.",
    fix=REPAIR,
    port=SETTINGS,
    causes=UNTRAINED_SIGNAL,
)
def blob_tiny_weights(fixed: bool) -> Program:
    return on_blobs("relu", "uniform", 9, fixed)


@post(
    "AutoTrainer: blob, 15 ReLUs",
    made_at_random("Models_Blob.py", "model_84c77206"),
    fault="15 layers of five ReLUs die.",
    fix=REPAIR,
    port=SETTINGS + " They die on seed 1, of three.",
    seed=1,
    causes=("dead_units", "vanishing_gradient", "no_gradient"),
)
def blob_15_relus(fixed: bool) -> Program:
    return on_blobs("relu", "he", 15, fixed)


@post(
    "AutoTrainer: blob, 11 sigmoids",
    made_at_random("Models_Blob.py", "model_2569b90f"),
    fault="Eleven layers of five sigmoids pass hardly any gradient to the first.",
    fix=REPAIR,
    port=SETTINGS,
    causes=("vanishing_gradient",),
)
def blob_11_sigmoids(fixed: bool) -> Program:
    return on_blobs("sigmoid", "he", 11, fixed)
