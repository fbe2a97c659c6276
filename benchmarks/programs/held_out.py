"""Programs that no rule was written with: from benchmarks and forums that nobody had used when the rules were done.

The causes were committed before any monitor saw a program. Later, rules were written for what had been missed here, and
`cut` was added to the causes of one: the set is no longer blind.
"""

from collections.abc import Callable
from functools import partial

import torch
from benchmarks.programs.parts import accuracy, adam, bit_accuracy, conv, digits, r2, sgd, stack, standardized
from benchmarks.programs.program import Program, post
from lightning.pytorch import LightningModule
from sklearn.datasets import load_diabetes  # type: ignore[import-untyped]  # has no stubs
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam, AdamW, RMSprop

TENSORFLOW_BUGS = "ForeverZyh/TensorFlow-Program-Bugs@158ba0a:StackOverflow/{}"
PYSIASSIST = "Hong-Shuo/PYSIASSIST@f54ef5f:dataset/testing_codes_set.xlsx, {}"
"""Posts in PyTorch's forum that were labelled with a pattern of silent bugs, which says the fix."""
TRAINCHECK = "OrderLab/TrainCheck-Evaluation-Workloads@2de9268:silent-issue-detection/bug-reprod-scripts/{}"
UMLAUT = "BerkeleyHCI/umlaut@68c2a02:user_eval/{}"


def not_cleared(module: LightningModule, loss: Tensor) -> None:
    """Step without `zero_grad`."""
    module.manual_backward(loss)
    module.optimizers().step()  # type: ignore[union-attr]  # there is one


def cleared_too_late(module: LightningModule, loss: Tensor) -> None:
    """Clear the gradients between the backward pass and the step."""
    module.manual_backward(loss)
    module.optimizers().zero_grad()  # type: ignore[union-attr]  # there is one
    module.optimizers().step()  # type: ignore[union-attr]


class Outputs(nn.Module):
    """The outputs of a recurrent layer, without its states."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)[0]
        return outputs


class LastState(Outputs):
    """The last hidden state of an LSTM of one layer, shape (samples, units)."""

    def forward(self, inputs: Tensor) -> Tensor:
        states: Tensor = self.layer(inputs)[1][0]
        return states[0]


class TimeFirst(nn.Module):
    """Brings time to the front of (samples, channels, steps): by `permute`, or by `view`, which mixes all three."""

    def __init__(self, is_permuted: bool) -> None:
        super().__init__()
        self.is_permuted = is_permuted

    def forward(self, maps: Tensor) -> Tensor:
        samples, channels, steps = maps.shape
        return maps.permute(2, 0, 1) if self.is_permuted else maps.view(steps, samples, channels)


def fit(outputs: Tensor, targets: Tensor) -> float:
    """R2 over all numbers, for a single sample of many."""
    return r2(outputs.flatten(), targets.flatten())


def logit_accuracy(outputs: Tensor, targets: Tensor) -> float:
    return bit_accuracy(outputs.sigmoid(), targets)


# Losses and what they get


@post(
    "43239467",
    TENSORFLOW_BUGS.format("IPS-11/43239467-buggy/mnist.py"),
    fault="The layer that gives the logits has the ReLU of the hidden ones.",
    fix="No activation at the output.",
    port="Digits of 16x16 in place of MNIST's 28x28; 200 steps of 2000.",
    causes=("output_range", "loss_input", "dead_units"),
)
def rectified_output(fixed: bool) -> Program:
    images, labels = digits(16)
    net = nn.Sequential(
        conv(1, 32, 5, padding=2, bias=0.1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        conv(32, 64, 5, padding=2, bias=0.1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *stack(1024, 1024, "relu", 10, *([] if fixed else ["relu"])),
    )
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            nn.init.constant_(layer.bias, 0.1)  # type: ignore[arg-type]  # all have one
    return Program(net, F.cross_entropy, images / 255, labels, adam(), 100, 200, accuracy)


@post(
    "UMLAUT A",
    UMLAUT.format("eval_a.py"),
    fault="Pixels of 0 to 255, dropout of 0.8, and a cross entropy of probabilities that gets logits.",
    fix="Pixels of 0 to 1, dropout of 0.2, and the cross entropy of logits.",
    port="Digits of 32x32 in place of CIFAR-10; a quarter of the channels; 200 steps of 3100.",
    causes=("input_scale", "loss_input", "activation_scale"),
)
def umlaut_a(fixed: bool) -> Program:
    images, labels = digits(32)
    rate = 0.2 if fixed else 0.8

    def of_probabilities(outputs: Tensor, targets: Tensor) -> Tensor:
        """Keras's, which takes outputs beyond 0 and 1 to the nearest probability, and divides by their sum."""
        return F.cross_entropy(outputs.clamp(1e-7, 1 - 1e-7).log(), targets)

    net = cifar_net(nn.ReLU, rate)
    loss = F.cross_entropy if fixed else of_probabilities
    return Program(net, loss, images / 255 if fixed else images, labels, adam(), 128, 200, accuracy)


def cifar_net(activation: Callable[[], nn.Module], dropout: float) -> nn.Sequential:
    """The net of UMLAUT's user study, for images of 32x32."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32)):
        layers += [conv(inputs, outputs, 3), activation(), conv(outputs, outputs, 3), activation()]
        layers += [nn.MaxPool2d(2), nn.Dropout(dropout)]
    dense = stack(800, 128, 128, 10)
    return nn.Sequential(
        *layers, nn.Flatten(), dense[0], activation(), dense[1], activation(), nn.Dropout(dropout), dense[2]
    )


@post(
    "forum 55904",
    PYSIASSIST.format("pattern 10, model-not-being-trained/55904"),
    fault="The negative log-likelihood gets the exponential of a log-softmax.",
    fix="The log-softmax itself.",
    port="102 blurred noises with more noise, of 24x24, in place of flowers; smaller layers; 300 steps.",
    causes=("loss_input", "unbounded_loss"),
)
def exponential_of_log_softmax(fixed: bool) -> Program:
    labels = torch.arange(1020) % 102
    kinds = F.interpolate(torch.randn(102, 3, 6, 6), size=(24, 24), mode="bilinear")
    images = kinds[labels] + 0.3 * torch.randn(1020, 3, 24, 24)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.nll_loss(outputs if fixed else outputs.exp(), targets)

    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(128, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 102),
        nn.LogSoftmax(1),
    )
    return Program(net, loss, images, labels, partial(Adam, lr=0.001), 32, 300, accuracy)


@post(
    "forum 27298",
    PYSIASSIST.format("pattern 10, why-my-loss-functions-value-doesnt-going-down/27298"),
    fault="A binary cross entropy of logits gets a sigmoid's outputs.",
    fix="No sigmoid.",
    port="Sparse counts drawn at random in place of the post's 4909 columns; 150 steps.",
    causes=("loss_input", "output_range"),
)
def sigmoid_before_logits(fixed: bool) -> Program:
    inputs = (torch.rand(800, 4909) < 0.02).float()
    evidence = inputs[:, :200].sum(1) - inputs[:, 200:400].sum(1) + 0.3 * torch.randn(800)
    targets = (evidence > 0).float().unsqueeze(1)
    net = nn.Sequential(
        nn.Linear(4909, 1500),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(1500, 300),
        nn.PReLU(1),
        nn.Linear(300, 1),
        *([] if fixed else [nn.Sigmoid()]),
    )
    score = logit_accuracy if fixed else bit_accuracy
    loss = F.binary_cross_entropy_with_logits
    return Program(net, loss, inputs, targets, partial(Adam, lr=0.01), 64, 150, score)


@post(
    "forum 81063",
    PYSIASSIST.format("pattern 10, training-loss-is-not-changing-at-all-while-training-lstm/81063"),
    fault="The cross entropy gets a softmax's outputs, after layers with dropout of 0.8 and at a rate of 0.01.",
    fix="No softmax.",
    port="Texts of 20 words out of 300, drawn with another frequency for each author; 250 steps.",
    causes=("loss_input", "output_range", "learning_rate"),
)
def authors(fixed: bool) -> Program:
    labels = torch.randint(3, (600,))
    frequencies = torch.randn(3, 300).mul(0.7).exp()
    texts = torch.multinomial(frequencies[labels], 20, replacement=True)
    net = nn.Sequential(
        nn.Embedding(300, 300),
        nn.Dropout(0.3),
        LastState(nn.LSTM(300, 100, batch_first=True)),
        nn.Linear(100, 1024),
        nn.Dropout(0.8),
        nn.ReLU(),
        nn.Linear(1024, 512),
        nn.Dropout(0.8),
        nn.ReLU(),
        nn.Linear(512, 3),
        *([] if fixed else [nn.Softmax(1)]),
    )
    return Program(net, F.cross_entropy, texts, labels, partial(AdamW, lr=0.01), 32, 250, accuracy)


# Shapes


@post(
    "38447935",
    TENSORFLOW_BUGS.format("UT-15/38447935-buggy/fitting.py"),
    fault="Outputs of shape (3, 1) are compared with targets of shape (3,), each with every other.",
    fix="Targets of shape (3, 1).",
    port="Nothing: y = x at 1, 2 and 3; 15,000 steps of 50,000.",
    causes=("loss_shape",),
)
def three_points(fixed: bool) -> Program:
    inputs, targets = torch.tensor([[1.0, 1], [1, 2], [1, 3]]), torch.tensor([1.0, 2, 3])
    net = nn.Sequential(nn.Linear(2, 1, bias=False))
    nn.init.trunc_normal_(net[0].weight, std=0.1, a=-0.2, b=0.2)  # type: ignore[arg-type]  # a Linear's
    column = targets.unsqueeze(1)
    return Program(net, F.mse_loss, inputs, column if fixed else targets, adam(1e-4), 3, 15_000, r2, answers=column)


@post(
    "forum 77192",
    PYSIASSIST.format("pattern 11, pytorch-model-ported-from-keras-model-not-learning/77192"),
    fault="view() in place of permute() brings time to the front, and so mixes samples, channels and steps.",
    fix="permute().",
    port="Noisy waves of four lengths, 60 steps of 200, in place of sound; sizes that the post leaves out; 300 steps.",
    causes=("batch_mixing",),
)
def viewed(fixed: bool) -> Program:
    labels = torch.randint(4, (400,))
    mix, phase = torch.randn(4, 128), 6 * torch.rand(400, 1)
    waves = torch.sin(torch.arange(60.0) * (0.3 + 0.3 * labels.unsqueeze(1)) + phase)
    series = waves.unsqueeze(1) * mix[labels].abs().unsqueeze(2) + 0.5 * torch.randn(400, 128, 60)
    net = nn.Sequential(
        nn.Conv1d(128, 32, 5),
        nn.ReLU(),
        nn.MaxPool1d(3),
        TimeFirst(is_permuted=fixed),
        Outputs(nn.LSTM(32, 32)),
        nn.Dropout(0.2),
        LastState(nn.LSTM(32, 32)),
        nn.Dropout(0.2),
        nn.Linear(32, 4),
    )
    return Program(net, F.cross_entropy, series, labels, partial(Adam, lr=0.001), 32, 300, accuracy)


# Steps: what is cleared, cut and frozen


@post(
    "forum 29507",
    PYSIASSIST.format("pattern 3, simplest-lstm-possible-and-it-does-not-work/29507"),
    fault="The gradients are never cleared, in an LSTM that is to add 0.1 to each number.",
    fix="zero_grad() before the backward pass.",
    port="Nothing: 21 numbers, in double precision; 1000 steps. On seed 1, of three, the fault comes back to 0.93.",
    causes=("stale_gradients",),
)
def simplest_lstm(fixed: bool) -> Program:
    numbers = torch.arange(21, dtype=torch.double).reshape(1, 21, 1) / 20

    def summed(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets, reduction="sum")

    step = None if fixed else not_cleared
    net = nn.Sequential(Outputs(nn.LSTM(1, 100, batch_first=True)), nn.Linear(100, 1)).double()
    return Program(net, summed, numbers, numbers + 0.1, partial(Adam, lr=1e-3), 1, 1000, fit, step=step)


@post(
    "forum 102879",
    PYSIASSIST.format("pattern 3, linear-regression-model-problems-with-loss/102879"),
    fault="zero_grad() stands between backward() and step(); and outputs (N, 1) meet targets (N,).",
    fix="zero_grad() before backward(), and targets of the outputs' shape.",
    port="Scikit-learn's diabetes, standardized, with its targets divided by their deviation; 800 steps.",
    causes=("cut", "no_gradient", "loss_shape"),
)
def cleared_before_the_step(fixed: bool) -> Program:
    loaded = load_diabetes()
    inputs = standardized(torch.tensor(loaded.data, dtype=torch.float32))
    targets = torch.tensor(loaded.target / loaded.target.std(), dtype=torch.float32)
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(10, 128), nn.PReLU(), nn.Dropout(0.5), nn.Linear(128, 1))
    column = targets.unsqueeze(1)
    return Program(
        net,
        F.l1_loss,
        inputs,
        column if fixed else targets,
        partial(RMSprop, lr=1e-3),
        32,
        800,
        r2,
        answers=column,
        step=None if fixed else cleared_too_late,
    )


@post(
    "forum 129991",
    PYSIASSIST.format("pattern 9, loss-backward-does-not-update/129991"),
    fault="The loss is wrapped in a new Variable, which cuts it off from the model.",
    fix="The loss as it is.",
    port="Digits of 8x8 with a net of two layers in place of a graph; 300 steps.",
    causes=("cut", "no_gradient", "cannot_learn"),
)
def wrapped_loss(fixed: bool) -> Program:
    images, labels = digits(8)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        error = F.mse_loss(outputs, targets)
        return error if fixed else Variable(error, requires_grad=True)  # type: ignore[no-untyped-call,no-any-return]

    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    targets = F.one_hot(labels, 10).float()
    inputs = images.flatten(1) / 255
    return Program(net, loss, inputs, targets, partial(Adam, lr=0.01), 32, 300, accuracy, answers=labels)


@post(
    "forum 84911",
    TRAINCHECK.format("pytorch-forum-84911/bug.py"),
    fault="All weights are frozen but those of batch norms, also the new head; the optimizer has the head alone.",
    fix="The head is trained.",
    port="Digits of 16x16, and a small net with random weights in place of a pretrained EfficientNet; 300 steps.",
    causes=("not_in_optimizer", "not_updated"),
)
def frozen_head(fixed: bool) -> Program:
    images, labels = digits(16)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )
    head = net[-1]
    for layer in net:
        if not isinstance(layer, nn.BatchNorm2d):
            layer.requires_grad_(fixed and layer is head)

    def of_head(_: object) -> Adam:
        return Adam(head.parameters(), lr=0.001)

    return Program(net, F.cross_entropy, images / 255, labels, of_head, 64, 300, accuracy)


# Rates and numbers


@post(
    "45002504",
    TENSORFLOW_BUGS.format("IPS-13/45002504-buggy/q2_linear_logistic_regression.py"),
    fault="Logistic regression on raw columns, with a rate of 0.5 and a penalty of the weights' square times 1.",
    fix="A rate of 0.01 and a penalty times 0.1.",
    port="Columns of the ranges of the source's heart disease; 2000 steps of 45,000.",
    causes=("learning_rate", "update_too_large", "input_scale"),
)
def heart(fixed: bool) -> Program:
    middle = torch.tensor([138.0, 3.6, 4.7, 25, 0.4, 53, 26, 17, 43])
    spread = torch.tensor([20.0, 4.6, 2.1, 7.8, 0.5, 9.8, 4.2, 24, 15])
    drawn = torch.randn(460, 9)
    labels = (drawn @ torch.tensor([0.3, 0.8, 0.7, 0.2, 0.8, 0.8, -0.3, 0.1, 1.2]) > 0.5).long()
    net = nn.Sequential(nn.Linear(9, 2))
    nn.init.trunc_normal_(net[0].weight)  # type: ignore[arg-type]  # a Linear's
    nn.init.zeros_(net[0].bias)  # type: ignore[arg-type]
    beta, rate = (0.1, 0.01) if fixed else (1, 0.5)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        penalty: Tensor = net[0].weight.square().sum() / 2  # type: ignore[operator,union-attr,assignment]
        return F.cross_entropy(outputs, targets) + beta * penalty

    return Program(net, loss, middle + spread * drawn, labels, sgd(rate), 7, 2000, accuracy)


@post(
    "43636736",
    TENSORFLOW_BUGS.format("IPS-15/43636736-buggy/linear_regression.py"),
    fault="A rate of 0.5 for a linear regression on inputs of 0 to 99.",
    fix="A rate of 0.0005.",
    port="Nothing: 100 points; 100 steps.",
    causes=("learning_rate", "update_too_large", "input_scale"),
)
def line(fixed: bool) -> Program:
    across = torch.arange(100.0)
    inputs = torch.stack([across, torch.ones(100)], 1)
    targets = (2 * across + 4 + 10 * torch.rand(100)).unsqueeze(1)
    net = nn.Sequential(nn.Linear(2, 1, bias=False))
    nn.init.ones_(net[0].weight)  # type: ignore[arg-type]  # a Linear's

    def half_mse(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets) / 2

    return Program(net, half_mse, inputs, targets, sgd(0.0005 if fixed else 0.5), 100, 100, r2)


@post(
    "46577203",
    TENSORFLOW_BUGS.format("IPS-17/46577203-buggy/linear_regression.py"),
    fault="A rate of 0.01 for the three coefficients of a parabola, with the squared errors summed.",
    fix="A rate of 0.001.",
    port="Nothing: four points; 100 steps.",
    causes=("learning_rate", "update_too_large", "nonfinite"),
)
def coefficients(fixed: bool) -> Program:
    across = torch.arange(4.0).unsqueeze(1)
    net = nn.Sequential(nn.Linear(2, 1))
    nn.init.zeros_(net[0].weight)  # type: ignore[arg-type]  # a Linear's
    nn.init.zeros_(net[0].bias)  # type: ignore[arg-type]
    summed = partial(F.mse_loss, reduction="sum")
    rate = 0.001 if fixed else 0.01
    return Program(net, summed, torch.cat([across**2, across], 1), across**2, sgd(rate), 4, 100, r2)


@post(
    "42064941",
    TENSORFLOW_BUGS.format("IPS-10/42064941-buggy/float16_broken.py"),
    fault="Adam's epsilon of 1e-8 is 0 in half precision, so that weights without a gradient become NaN.",
    fix="An epsilon of 1e-4.",
    port="Digits of 8x8, of which three pixels are always 0, and a linear layer in place of a convolution of zeros;"
    " 300 steps.",
    causes=("nonfinite", "precision"),
)
def half(fixed: bool) -> Program:
    images, labels = digits(8)
    net = nn.Sequential(nn.Linear(64, 10)).half()
    optimizer = partial(Adam, lr=1e-3, eps=1e-4 if fixed else 1e-8)
    return Program(net, F.cross_entropy, images.flatten(1).half() / 255, labels, optimizer, 32, 300, accuracy)


@post(
    "UMLAUT B",
    UMLAUT.format("eval_b.py"),
    fault="Adam's rate is -1000, and no layer has an activation.",
    fix="A rate of 0.001, and ReLUs.",
    port="Digits of 32x32 in place of CIFAR-10; a quarter of the channels; 200 steps of 3900. A negative rate is"
    " `maximize=True`, as torch refuses the sign.",
    causes=("learning_rate", "update_too_large"),
)
def umlaut_b(fixed: bool) -> Program:
    images, labels = digits(32)
    net = cifar_net(nn.ReLU if fixed else nn.Identity, 0.2)
    optimizer = adam() if fixed else partial(Adam, lr=1e3, eps=1e-7, maximize=True)
    return Program(net, F.cross_entropy, images / 255, labels, optimizer, 128, 200, accuracy)


@post(
    "forum 98714",
    "https://discuss.pytorch.org/t/simple-linear-sigmoid-network-not-learning/98714",
    fault="Steps of 0.01 of SGD, a sample at a time, hardly move a net of four sigmoids that is to learn XNOR.",
    fix="16 hidden units, binary cross entropy with logits, and Adam, as the answer proposes.",
    port="Nothing: 4000 steps.",
    causes=("learning_rate", "update_too_small", "not_learning"),
)
def xnor(fixed: bool) -> Program:
    inputs, targets = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]), torch.tensor([[1.0], [0], [0], [1]])
    if fixed:
        net = nn.Sequential(nn.Linear(2, 16), nn.Sigmoid(), nn.Linear(16, 1))
        loss = F.binary_cross_entropy_with_logits
        return Program(net, loss, inputs, targets, partial(Adam, lr=0.01), 1, 4000, logit_accuracy)
    net = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Linear(4, 1), nn.Sigmoid())
    for layer in (net[0], net[2]):
        nn.init.uniform_(layer.weight)  # type: ignore[arg-type]  # a Linear's
    return Program(net, F.mse_loss, inputs, targets, sgd(0.01), 1, 4000, bit_accuracy)
