"""The programs: facts of published ones, in our words and in torch.

Where Keras's loss takes probabilities, a sound program here gives logits to torch's loss, as its users do. Where the
activation of the output is the fault, it stays, and the loss that a user of torch would write gets its output.
AutoTrainer's are in `autotrainer.py`; what was left out, and why, stands in `catalogue.py`.
"""

import torch
from benchmarks.programs.parts import (
    accuracy,
    adam,
    bit_accuracy,
    clipped_binary_cross_entropy,
    conv,
    digits,
    iris,
    r2,
    rmsprop,
    sgd,
    stack,
    standardized,
    tensors,
)
from benchmarks.programs.program import Program, post
from sklearn.datasets import make_multilabel_classification  # type: ignore[import-untyped]  # has no stubs
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name

DEEPLOCALIZE = "Wardat-ISU/DeepLocalize@297bc34:Benchmark/StackOverflow/{}"
GITHUB = "Wardat-ISU/DeepLocalize@297bc34:Benchmark/GitHub/Buggy Model/{}"
DEEPFD_PATCHES = "ArabelaTso/DeepFD@9fe0895:Benchmark/Benchmark-with-patches.xlsx"
BENCHDL4REAL = "dlfaults/HowRealAreThey@358a4a1:BenchDL4Real/{}"

SOFTMAX_OF_ONE = ("no_influence", "output_range", "no_gradient")
"""What is right of a softmax over a single unit, which gives 1 whatever comes in."""


# A softmax over one unit


@post(
    "31880720",
    DEEPLOCALIZE.format("31880720/Buggy Code/31880720.py"),
    fault="The single output goes through a softmax, so that it is 1 for every sample.",
    fix="A sigmoid.",
    port="1500 steps of 60,000.",
    causes=SOFTMAX_OF_ONE,
)
def ones_or_zeros(fixed: bool) -> Program:
    is_one = (torch.rand(20000, 1) < 0.5).float()
    net = stack(128, 50, "relu", "relu", 0.2, 50, "relu", 0.2, 1, "sigmoid" if fixed else "softmax")
    return Program(net, F.binary_cross_entropy, is_one.expand(-1, 128), is_one, rmsprop(), 1, 1500, bit_accuracy)


@post(
    "33969059",
    DEEPLOCALIZE.format("33969059/Buggy Code/33969059.py"),
    fault="A regression with targets up to 35,000 ends in a softmax over one unit.",
    fix="No activation at the output. The inputs, up to 10,000, stay as they are, and the fit stays poor.",
    port="5000 samples of 100,000, 2000 steps of 62,500.",
    causes=SOFTMAX_OF_ONE,
)
def weighted_sum(fixed: bool) -> Program:
    inputs = torch.rand(5000, 3) * 10000
    targets = inputs @ torch.tensor([[2.0], [1.0], [0.5]]) + 2.2
    output = [] if fixed else ["softmax"]
    net = stack(3, 3, "tanh", 0.5, 2, "tanh", 0.5, 1, *output, init="uniform")
    return Program(net, F.mse_loss, inputs, targets, sgd(0.1, 0.9, nesterov=True), 32, 2000, r2)


@post(
    "34311586",
    DEEPLOCALIZE.format("34311586/Buggy Code/34311586.py"),
    fault="XOR with a softmax over one unit, whose output is always 1.",
    fix="A sigmoid, a rate of 0.1 in place of 0.001, and 20,000 steps of 4 samples in place of 20 of all 6.",
    port="The faulty program takes 500 steps, as 20 are too few for any monitor; the fixed one 8000.",
    causes=SOFTMAX_OF_ONE,
)
def xor_with_softmax(fixed: bool) -> Program:
    inputs, targets = tensors(
        [[1, 1], [0, 0], [1, 0], [0, 1], [1, 1], [0, 0]], [[0.0], [0.0], [1.0], [1.0], [0.0], [0.0]]
    )
    net = stack(2, 2, "sigmoid", 3, "sigmoid", 1, "sigmoid" if fixed else "softmax", init="uniform")
    optimizer = sgd(0.1 if fixed else 0.001, 0.9, nesterov=True)
    size, steps = (4, 8000) if fixed else (6, 500)
    return Program(net, F.mse_loss, inputs, targets, optimizer, size, steps, bit_accuracy)


@post(
    "45442843",
    DEEPLOCALIZE.format("45442843/Buggy Code/untitled39.py"),
    fault="A yes-or-no question about one number ends in a softmax over one unit.",
    fix="A sigmoid with binary cross entropy in place of the mean absolute error, and a standardized input.",
    port="A draw of the same range and rule in place of the file: 15,000 to 25,000, yes below 20,000; 500 steps.",
    causes=SOFTMAX_OF_ONE,
)
def below_a_threshold(fixed: bool) -> Program:
    inputs = torch.rand(800, 1) * 10000 + 15000
    targets = (inputs < 20000).float()
    inputs = standardized(inputs) if fixed else inputs
    net = stack(1, 1, "sigmoid", 1, "sigmoid" if fixed else "softmax", init=["glorot", "normal"])
    loss = F.binary_cross_entropy if fixed else F.l1_loss
    return Program(net, loss, inputs, targets, rmsprop(), 200, 500, bit_accuracy)


# An output that cannot be what the loss or the targets want


@post(
    "38648195",
    DEEPLOCALIZE.format("38648195/Buggy Code/38648195.py"),
    fault="Several labels can hold at once, but the output is a softmax over them, with a squared error.",
    fix="A sigmoid for each label, with binary cross entropy.",
    port="4000 samples of 48,000; 2000 steps of 48,000.",
    causes=("output_range", "loss_input", "targets"),
)
def several_labels(fixed: bool) -> Program:
    seed = int(torch.randint(1000, ()))
    drawn = make_multilabel_classification(n_samples=4000, n_features=20, n_classes=3, random_state=seed)
    inputs, targets = tensors(drawn[0], drawn[1])
    net = stack(20, 20, "relu", 0.5, 20, "relu", 0.5, 3, "sigmoid" if fixed else "softmax")
    loss = F.binary_cross_entropy if fixed else F.mse_loss
    return Program(net, loss, inputs, targets.float(), sgd(), 20, 2000, bit_accuracy)


@post(
    "44066044",
    DEEPLOCALIZE.format("44066044/Buggy Code/untitled30.py"),
    fault="Inputs up to 3e9 come as they are, and a ReLU stands where the loss wants a probability.",
    fix="Standardized inputs and a sigmoid.",
    port="21 packets of the same ranges and rule in place of the file. Torch's loss would refuse outputs above 1 at"
    " once, so that Keras's clipping is written out.",
    causes=("output_range", "input_scale", "dead_units"),
)
def packets(fixed: bool) -> Program:
    is_other = (torch.arange(21) >= 8).double().unsqueeze(1)

    def choice(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), (21, 1))]

    address = torch.where(is_other > 0, 3232235781.0, choice(3232235778, 3232235773))
    fixed_part = torch.tensor([3232235779.0, 6, 128], dtype=torch.float64).expand(21, -1)
    window = torch.where(is_other > 0, choice(525568, 525558, 8192), choice(524544, 524032, 524288))
    has_data = choice(0, 1)
    data = has_data * torch.cat([choice(12), choice(61, 0.86, 65280), choice(5, 6), choice(0), choice(100, 206)], 1)
    inputs = torch.cat([address, fixed_part, window, choice(502, 56783, 55924), data], 1)
    inputs = standardized(inputs) if fixed else inputs.float()
    net = stack(11, 12, "relu", 12, "relu", 1, "sigmoid" if fixed else "relu", init="normal")
    return Program(net, clipped_binary_cross_entropy, inputs, is_other.float(), adam(), 5, 500, bit_accuracy)


@post(
    "47352366",
    DEEPLOCALIZE.format("47352366/Buggy Code/untitled36.py"),
    fault="A ReLU stands before the cross entropy, so that no logit can be below zero and a dead one stays.",
    fix="A softmax (here: no activation).",
    port="Digits of 16x16 in place of MNIST's 28x28; 300 steps of 600.",
    causes=("output_range", "loss_input", "dead_units"),
)
def rectified_logits(fixed: bool) -> Program:
    images, labels = digits(16)
    net = nn.Sequential(
        conv(1, 32, 5, padding=2, bias=0.1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        conv(32, 64, 5, padding=2, bias=0.1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *stack(1024, 1024, "relu", 0.5, 10),
        *([] if fixed else [nn.ReLU()]),
    )
    nn.init.constant_(net[7].bias, 0.1)  # type: ignore[arg-type]  # a Linear's
    return Program(net, F.cross_entropy, images / 255, labels, adam(), 50, 300, accuracy)


@post(
    "48221692",
    DEEPLOCALIZE.format("48221692/Buggy Model/untitled26.py"),
    fault="A regression with targets from 3 to 103 ends in a sigmoid.",
    fix="No activation at the output.",
    port="The file is x * x + 3 for x from -10 to 10; 150 of the 201 at random, as in the source.",
    causes=("output_range", "saturated"),
)
def parabola(fixed: bool) -> Program:
    inputs = (torch.randperm(201)[:150].unsqueeze(1) - 100) / 10
    net = stack(1, 5, "sigmoid", 1, *([] if fixed else ["sigmoid"]))
    return Program(net, F.mse_loss, inputs, inputs.square() + 3, sgd(), 150, 1000, r2)


@post(
    "50079585",
    DEEPLOCALIZE.format("50079585/Buggy Code/untitled28.py"),
    fault="Three classes are learnt by one output with binary cross entropy, whose targets are then 0, 1 and 2.",
    fix="Three outputs with a softmax and cross entropy.",
    port="Noisy stripes of three directions, 50x50, in place of photographs of 150x150; 200 steps of 610. The loss with"
    " logits, as torch's other one refuses a target of 2.",
    causes=("targets", "unbounded_loss", "output_range"),
)
def damage(fixed: bool) -> Program:
    labels = torch.randint(3, (600,))
    angle = labels * (torch.pi / 3) + torch.randn(600) * 0.15
    down, across = torch.meshgrid(torch.arange(50.0), torch.arange(50.0), indexing="ij")
    waves = angle.cos()[:, None, None] * across + angle.sin()[:, None, None] * down
    images = (torch.sin(waves + torch.rand(600, 1, 1) * 6).unsqueeze(1) + 0.3 * torch.randn(600, 3, 50, 50)).sigmoid()
    net = nn.Sequential(
        conv(3, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        conv(32, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        conv(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *stack(1024, 64, "relu", 0.5, 3 if fixed else 1),
    )
    if fixed:
        return Program(net, F.cross_entropy, images, labels, rmsprop(), 16, 200, accuracy)
    targets = labels.float().unsqueeze(1)

    def right(logits: Tensor, answers: Tensor) -> float:
        return ((logits > 0).float() == answers).double().mean().item()

    return Program(net, F.binary_cross_entropy_with_logits, images, targets, rmsprop(), 16, 200, right)


@post(
    "51930566",
    DEEPLOCALIZE.format("51930566/Buggy Code/untitled31.py"),
    fault="A sigmoid stands before the cross entropy, and the scaled inputs are computed but not used.",
    fix="A softmax (here: no activation), and the standardized inputs.",
    port="Nothing: iris; 75 samples, 750 steps.",
    causes=("loss_input", "output_range"),
)
def iris_standardized(fixed: bool) -> Program:
    inputs, labels = iris()
    inputs = standardized(inputs) if fixed else inputs
    half = torch.randperm(150)[:75]
    net = stack(4, 4, "relu", 3, *([] if fixed else ["sigmoid"]), init="normal")
    return Program(net, F.cross_entropy, inputs[half], labels[half], adam(), 5, 750, accuracy)


@post(
    "59278771",
    DEEPLOCALIZE.format("59278771/Buggy Model/untitled31.py"),
    fault="A sigmoid stands before the cross entropy, in a small net on unscaled inputs.",
    fix="A softmax (here: no activation), a second hidden layer, and inputs scaled to 0 to 1.",
    port="Nothing: iris; 2000 steps of 6000. The fixed program's batch of Keras's 32 stays.",
    causes=("loss_input", "output_range"),
)
def iris_scaled(fixed: bool) -> Program:
    inputs, labels = iris()
    if not fixed:
        net = stack(4, 4, "relu", 3, "sigmoid", init="normal")
        return Program(net, F.cross_entropy, inputs, labels, adam(), 5, 2000, accuracy)
    lowest, highest = inputs.min(0).values, inputs.max(0).values
    net = stack(4, 4, "relu", 8, "relu", 3, init="normal")
    return Program(net, F.cross_entropy, (inputs - lowest) / (highest - lowest), labels, adam(), 32, 2000, accuracy)


# Inputs and targets of the wrong scale, wrong labels


@post(
    "47724077",
    DEEPLOCALIZE.format("47724077/Buggy Code/47724077.py"),
    fault="A census with columns up to 1,000,000 comes unscaled.",
    fix=f"Standardized inputs ({DEEPFD_PATCHES}, row 14; the post's own answer only changes the optimizer).",
    port="A draw of the same columns and ranges in place of the census; 4000 samples, 1000 steps of 16,300.",
    causes=("input_scale",),
)
def census(fixed: bool) -> Program:
    age, hours, school = torch.randn(3, 4000, 1)
    flags = (torch.rand(4000, 8) < 0.2).float()
    gain = (torch.rand(4000, 1) < 0.08) * (torch.randn(4000, 1) + 8.5).exp()
    loss = (torch.rand(4000, 1) < 0.05) * (torch.randn(4000, 1) * 400 + 1900)
    weight = (torch.randn(4000, 1) * 0.5 + 12).exp()
    columns = [age * 13 + 38, weight, school * 2.5 + 10, gain, loss, hours * 12 + 40, flags]
    inputs = torch.cat(columns, 1)
    evidence = age + 1.5 * school + hours + 2 * flags[:, :1] - 2 * flags[:, 1:2] + 3 * (gain > 5000) - 2
    labels = (evidence + 0.5 * torch.randn(4000, 1) > 0).long().flatten()
    inputs = standardized(inputs) if fixed else inputs
    return Program(stack(14, 21, "relu", 2), F.cross_entropy, inputs, labels, adam(), 100, 1000, accuracy)


@post(
    "52800582",
    DEEPLOCALIZE.format("52800582/Buggy Code/untitled35.py"),
    fault="x of -100 to 100 and x ** 4, up to 1e8, come unscaled.",
    fix="Both standardized (and a ReLU in place of the first sigmoid).",
    port="Nothing: 1000 steps with all 400 samples.",
    causes=("input_scale", "targets", "saturated"),
)
def fourth_power(fixed: bool) -> Program:
    inputs = torch.arange(-100, 100, 0.5).unsqueeze(1)
    targets = inputs**4
    if fixed:
        inputs, targets = standardized(inputs), standardized(targets)
    net = stack(1, 50, "relu" if fixed else "sigmoid", 50, "elu", 1)
    return Program(net, F.mse_loss, inputs, targets, adam(), 400, 1000, r2)


@post(
    "55328966",
    DEEPLOCALIZE.format("55328966/Buggy Code/55328966.py"),
    fault="Pixels come as 0 to 255, and a sigmoid stands before the cross entropy.",
    fix="Pixels of 0 to 1 and a softmax (here: no activation).",
    port="Digits of 28x28 in place of MNIST; the source's 1560 steps.",
    causes=("input_scale", "loss_input", "saturated"),
)
def raw_digits(fixed: bool) -> Program:
    images, labels = digits(28)
    inputs = images.flatten(1) / (255 if fixed else 1)
    net = stack(784, 784, 50, "relu", 10, *([] if fixed else ["sigmoid"]))
    return Program(net, F.cross_entropy, inputs, labels, sgd(1e-4), 32, 1560, accuracy)


@post(
    "59325381",
    DEEPLOCALIZE.format("59325381/Buggy Code/59325381.py"),
    fault="The labels are divided by 255 like the pixels, and become 0 as class numbers.",
    fix="The labels as they are.",
    port="Digits of 28x28 in place of MNIST; 100 steps of 3750.",
    causes=("labels", "targets"),
)
def divided_labels(fixed: bool) -> Program:
    images, labels = digits(28)
    net = nn.Sequential(
        conv(1, 64, 3, padding=1),
        nn.MaxPool2d(2),
        conv(64, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *stack(1568, 128, "relu", 10),
    )
    targets = labels if fixed else (labels / 255).long()
    return Program(net, F.cross_entropy, images / 255, targets, adam(), 32, 100, accuracy, answers=labels)


# Steps too large, too small or too few


@post(
    "31556268",
    DEEPLOCALIZE.format("31556268/Buggy Code/31556268.py"),
    fault="XOR with an absolute error and small steps of SGD hardly leaves the outputs it starts with.",
    fix="A squared error, Adam, and 10,000 steps in place of 1000.",
    port="8000 steps of the fix's 10,000.",
    causes=("learning_rate", "update_too_small", "not_learning"),
)
def xor_with_absolute_error(fixed: bool) -> Program:
    inputs, targets = tensors([[1, 1], [1, 0], [0, 0], [0, 1]], [[0.0], [1.0], [0.0], [1.0]])
    net = stack(2, 4, "sigmoid", 1, "sigmoid")
    loss, steps = (F.mse_loss, 8000) if fixed else (F.l1_loss, 1000)
    optimizer = adam() if fixed else sgd(0.05, 0.11, nesterov=True)
    return Program(net, loss, inputs, targets, optimizer, 4, steps, bit_accuracy)


@post(
    "48934338",
    DEEPLOCALIZE.format("48934338/Buggy Code/48934338.py"),
    fault="SGD's rate of 0.1 is too large for a regression with targets up to 120.",
    fix="A rate of 0.001.",
    port="Nothing: 2000 steps.",
    causes=("learning_rate", "update_too_large"),
)
def noisy_parabola(fixed: bool) -> Program:
    inputs = torch.arange(0, 5, 0.1).unsqueeze(1)
    targets = 5 * inputs**2 + torch.randn(50, 1) ** 3
    net = stack(1, 50, "relu", 30, "relu", 1, init=["glorot", "uniform", "glorot"])
    return Program(net, F.mse_loss, inputs, targets, sgd(0.001 if fixed else 0.1), 32, 2000, r2)


@post(
    "FacialKeypointsDetection",
    GITHUB.format("FacialKeypointsDetection/src/1_single_hidden_layer.py"),
    fault="Adam's rate of 0.1 is too large for 9216 inputs.",
    fix="SGD with a rate of 0.01, momentum 0.9 and gradients clipped to norm 1.",
    port="15 spots around a random middle, 96x96, in place of faces; 400 samples, 300 steps of 6700.",
    causes=("learning_rate", "update_too_large"),
)
def keypoints(fixed: bool) -> Program:
    middle, shape = torch.rand(400, 1, 2) * 40 + 28, torch.randn(15, 2) * 8
    places = middle + shape + torch.randn(400, 15, 2)
    line = torch.arange(96.0)
    spots = torch.exp(-((places.unsqueeze(-1) - line) ** 2) / 18)  # (400, 15, across or down, 96)
    inputs = torch.einsum("npi,npj->nij", spots[:, :, 1], spots[:, :, 0]).flatten(1).clamp(0, 1)
    targets = ((places - 48) / 48).flatten(1)
    optimizer = sgd(0.01, 0.9, nesterov=True) if fixed else adam(0.1)
    clip = 1.0 if fixed else None
    return Program(stack(9216, 50, 100, 30), F.mse_loss, inputs, targets, optimizer, 32, 300, r2, clip=clip)


@post(
    "gol_nn",
    GITHUB.format("gol_nn/gol.py"),
    fault="The Game of Life gets two epochs of Adam at its usual rate, too few.",
    fix="A rate of 0.01, a squared error, and 10 epochs.",
    port="Nothing: fields of 3x3; 250 steps, and 1250.",
    causes=("learning_rate", "update_too_small", "not_learning"),
)
def game_of_life(fixed: bool) -> Program:
    field = (torch.rand(8000, 1, 3, 3) < 0.5).float()
    around = F.pad(field, (1, 1, 1, 1), mode="circular")
    neighbours = F.conv2d(around, torch.ones(1, 1, 3, 3)) - field
    alive = ((neighbours == 3) | ((neighbours == 2) & (field == 1))).float()
    net = nn.Sequential(conv(1, 10, 3), nn.ReLU(), conv(10, 20, 1), nn.ReLU(), conv(20, 1, 1), nn.Sigmoid())
    loss, rate, steps = (F.mse_loss, 0.01, 1250) if fixed else (F.binary_cross_entropy, 0.001, 250)
    return Program(net, loss, around, alive, adam(rate), 64, steps, bit_accuracy)


@post(
    "51181393",
    f"{DEEPFD_PATCHES}, row 47",
    fault="RMSprop's rate of 0.001 takes a single weight 0.6 far in all 600 steps; it should become 5.",
    fix="A rate of 0.1.",
    port="Nothing: 80 of 100 numbers from 1 to 2, and five times as much; 200 epochs.",
    causes=("learning_rate", "update_too_small", "not_learning"),
)
def five_times(fixed: bool) -> Program:
    inputs = torch.linspace(1, 2, 100)[torch.randperm(100)[:80]].unsqueeze(1)
    return Program(stack(1, 1), F.mse_loss, inputs, 5 * inputs, rmsprop(0.1 if fixed else 0.001), 32, 600, r2)


@post(
    "50306988",
    DEEPLOCALIZE.format("50306988/Buggy Code/50306988.py"),
    fault="Two clouds that a line parts get five epochs of Adam, too few for its rate.",
    fix=f"One sigmoid with binary cross entropy, a rate of 0.01 and ten epochs ({DEEPFD_PATCHES}, row 6).",
    port="Nothing: 35 steps, and 130 with twice the samples. The fix learns on seeds 0 and 1, of three.",
    causes=("learning_rate", "update_too_small", "not_learning"),
)
def two_clouds(fixed: bool) -> Program:
    count = 200 if fixed else 100
    inputs = torch.cat([torch.rand(count, 2) * 0.2 + 0.2, torch.rand(count, 2) * 0.2 + 0.5])
    labels = (torch.arange(2 * count) >= count).long()
    if fixed:
        net, targets = stack(2, 2, "sigmoid", 1, "sigmoid"), labels.float().unsqueeze(1)
        return Program(net, F.binary_cross_entropy, inputs, targets, adam(0.01), 32, 130, bit_accuracy)
    return Program(stack(2, 2, "sigmoid", 2), F.cross_entropy, inputs, labels, adam(), 32, 35, accuracy)


@post(
    "48385830",
    DEEPLOCALIZE.format("48385830/Buggy Code/48385830.py"),
    fault="Two linear layers with weights of standard deviation 1 take SGD's steps of rate 3 on a squared error.",
    fix="A sigmoid, a softmax (here: no activation) with cross entropy, and a rate of 0.1"
    f" ({BENCHDL4REAL.format('DeepFD/48385830/repair.py')}; the post's own answer keeps the rate).",
    port="Digits of 28x28 in place of MNIST; 3000 steps of 180,000.",
    causes=("learning_rate", "update_too_large", "exploding_gradient"),
)
def rate_of_three(fixed: bool) -> Program:
    images, labels = digits(28)
    net = stack(784, *((30, "sigmoid", 10) if fixed else (30, 10)), init="standard_normal")
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.bias)
    inputs = images.flatten(1) / 255
    if fixed:
        return Program(net, F.cross_entropy, inputs, labels, sgd(0.1), 10, 3000, accuracy)
    targets = F.one_hot(labels, 10).float()
    return Program(net, F.mse_loss, inputs, targets, sgd(3.0), 10, 3000, accuracy, answers=labels)


@post(
    "39525358",
    DEEPLOCALIZE.format("39525358/Buggy Code/39525358.py"),
    fault="Letters come as character codes of 65 to 70, unscaled.",
    fix=f"Standardized inputs and Adam with a rate of 0.1 ({DEEPFD_PATCHES}, row 13), in batches of 10 in place of 1.",
    port="Rows of the file's kind; of 150 epochs all. The fix learns on seeds 1 and 2, of three.",
    causes=("input_scale", "dead_units"),
    seed=1,
)
def letters(fixed: bool) -> Program:
    targets = (torch.arange(14) % 5 > 2).float().unsqueeze(1)
    inputs = torch.tensor([65.0, 66.0, 67.0]) + 3 * targets
    inputs[::6, 2] = 137 - inputs[::6, 2]  # a few rows end in the other group's letter
    inputs = standardized(inputs) if fixed else inputs
    net = stack(3, 12, "relu", 3, "relu", 1, "sigmoid", init="uniform")
    rate, size, steps = (0.1, 10, 300) if fixed else (0.001, 1, 2100)
    return Program(net, F.binary_cross_entropy, inputs, targets, adam(rate), size, steps, bit_accuracy)
