"""What is found in a step that is wrong, and that nothing is found in one that is not."""

import contextlib
import math
import time

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cosine_similarity,
    cross_entropy,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
)
from tracing.steps import audited, watched

from hookboard import audit

torch.manual_seed(0)
X = torch.randn(16, 4)
CLASSES = torch.arange(16) % 3
BINARY = (torch.arange(16) % 2).float()
REAL = torch.linspace(-2, 2, 16)


def net(*tail, outputs=3):
    return nn.Sequential(nn.Linear(4, outputs), *tail)


def first(output):
    return output[:, 0]


FAULTS = {
    "ReLU before cross_entropy": (net(nn.ReLU()), cross_entropy, CLASSES, None, "loss_input", "1"),
    "sigmoid before logits": (
        net(nn.Sigmoid(), outputs=1),
        nn.BCEWithLogitsLoss(),
        BINARY,
        first,
        "loss_input",
        "1",
    ),
    "one class": (net(outputs=1), cross_entropy, torch.zeros(16, dtype=torch.long), None, "no_influence", ""),
}


def found_in(model, loss, target, shape):
    return audited(model, X, target, lambda output, y: loss(shape(output) if shape else output, y))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_alarm_with_its_rule_and_layer(name):
    model, loss, target, shape, rule, module = FAULTS[name]
    alarms = [finding for finding in found_in(model, loss, target, shape) if finding.severity == "alarm"]
    assert {(finding.rule, finding.module) for finding in alarms} == {(rule, module)}


class Counted(torch.autograd.Function):
    backward_passes = 0

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        Counted.backward_passes += 1
        return gradient


def test_an_audit_runs_no_backward_pass_of_an_own_function():
    model = nn.Linear(4, 3)
    audit(model, X, lambda x: Counted.apply(model(x)).square().mean())
    assert Counted.backward_passes == 0


@pytest.mark.parametrize(
    ("model", "loss", "advice"),
    [
        (net(), nll_loss, "apply log_softmax(dim=1) first, or pass the raw logits to cross_entropy"),
        (net(nn.LogSoftmax(1)), lambda o, t: nll_loss(o.exp(), t), "remove the exp: nll_loss gets probabilities"),
    ],
    ids=["logits", "exp"],
)
def test_the_advice_for_nll_loss_names_the_one_call_to_change(model, loss, advice):
    assert [finding.advice for finding in found_in(model, loss, CLASSES, None)] == [advice]


def advice_of(loss, outputs, targets):
    """The advice to alarms on the input of a loss, of a step that scales its outputs by a weight of 1."""
    scale = nn.Linear(1, 1, bias=False)
    nn.init.ones_(scale.weight)
    found = audit(scale, (outputs, targets), lambda batch: loss(batch[0] * scale.weight[0, 0], batch[1]))
    return [finding.advice for finding in found if finding.rule == "loss_input"]


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5)], ids=["a small batch", "sequences"])
def test_probabilities_are_not_advised_to_go_through_log_softmax(shape):
    outputs, targets = torch.randn(shape), torch.zeros(shape[0], *shape[2:], dtype=torch.long)
    assert advice_of(lambda o, t: nll_loss(o.softmax(1), t), outputs, targets) == [
        "use log_softmax in place of the softmax: nll_loss gets probabilities"
    ]
    assert advice_of(lambda o, t: nll_loss(o.softmax(1).clamp(1e-9), t), outputs, targets) == [
        "take the logarithm of its input: nll_loss gets probabilities"
    ]
    for made_by in (torch.softmax, torch.log_softmax):
        assert advice_of(lambda o, t, made_by=made_by: nll_loss(made_by(o, 0), t), outputs, targets) == [
            f"use log_softmax(dim=1) in place of the {made_by.__name__}, which runs over another dimension"
        ]
    wanted = torch.full(shape, 1 / 3)
    assert advice_of(lambda o, t: nn.functional.kl_div(o.softmax(1), t), outputs, wanted) == [
        "use log_softmax in place of the softmax: kl_div expects log-probabilities"
    ]


HEALTHY = {
    "soft labels": (net(), cross_entropy, torch.full((16, 3), 1 / 3), None),
    "missing labels, masked after the loss": (
        net(nn.Sigmoid(), outputs=1),
        lambda o, t: (mse_loss(o, t, reduction="none") * (t >= 0)).mean(),
        REAL,
        first,
    ),
    "missing labels, weighted": (
        net(outputs=1),
        lambda o, t: binary_cross_entropy_with_logits(o, t, weight=(t >= 0).float()),
        BINARY * 2 - 1,
        first,
    ),
    "ignored rows of zeros": (
        net(nn.LogSoftmax(1)),
        lambda o, t: nll_loss(o * (t >= 0)[:, None], t),
        torch.where(CLASSES == 2, -100, CLASSES),
        None,
    ),
    "ReLU6": (net(nn.ReLU6(), outputs=1), mse_loss, REAL.abs() * 2, first),
    "a metric of the raw scale": (
        net(outputs=1),
        lambda o, t: mse_loss(o, t) + 0 * l1_loss(o.detach() * 500, t * 500),
        REAL,
        first,
    ),
    "targets that rounding puts above 1": (net(outputs=1), nn.BCEWithLogitsLoss(), BINARY * (1 + 4e-7), first),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found_in_a_healthy_step(name):
    assert found_in(*HEALTHY[name]) == ()


def test_the_line_of_the_loss_and_that_of_the_softmax_are_named():
    model = net(nn.Softmax(1))

    def step(batch):
        output = model(batch[0])
        return cross_entropy(output, batch[1])

    (found,) = audit(model, (X, CLASSES), step)
    start = step.__code__.co_firstlineno
    assert f"cross_entropy at test_findings.py:{start + 2} expects logits" in found.evidence
    assert f"softmax at test_findings.py:{start + 1} (in 1)" in found.evidence


@pytest.mark.parametrize(
    ("shift", "advice"),
    [
        (0, "use sigmoid"),
        (1, "remove the softmax: the targets are between 1 and 2"),
    ],
)
def test_sigmoid_in_place_of_a_softmax_over_one_value_is_advised_for_targets_that_it_can_give(shift, advice):
    found = found_in(net(nn.Softmax(1), outputs=1), mse_loss, BINARY + shift, first)
    assert (found[0].rule, found[0].severity) == ("no_influence", "alarm")
    assert found[0].advice.startswith(advice)


def test_unscaled_targets_are_a_note_with_their_range_mean_and_deviation():
    target = 200 + 75 * REAL
    (found,) = found_in(net(outputs=1), mse_loss, target, first)
    assert (found.rule, found.severity) == ("targets", "note")
    exact = target.double()
    assert (
        f"are between {exact.min():.3g} and {exact.max():.3g}, with a mean of {exact.mean():.3g} and a standard "
        f"deviation of {exact.std():.3g}"
    ) in found.evidence


@pytest.mark.parametrize(("samples", "classes", "severity"), [(32, 3, "alarm"), (31, 3, "note"), (32, 2, "note")])
def test_many_samples_of_one_class_of_several_are_an_alarm(samples, classes, severity):
    model, batch = net(outputs=classes), (torch.randn(samples, 4), torch.ones(samples, dtype=torch.long))
    (found,) = audited(model, *batch, cross_entropy)
    assert (found.rule, found.severity) == ("targets", severity)


def test_targets_out_of_reach_are_an_alarm_if_they_cost_a_share_of_the_variance():
    model = nn.Sequential(nn.Linear(4, 1), nn.ReLU())
    for least, severity in ((-0.05, "note"), (-3.0, "alarm")):  # noise around 0, or values that are below it
        target = torch.linspace(least, 8.0, 100)[:, None]
        (found,) = audited(model, torch.randn(100, 4), target, mse_loss)
        unreachable = int((target < -1e-3).sum())
        assert (found.rule, found.severity) == ("output_range", severity)
        assert f"so {unreachable} of 100 cannot be reached" in found.evidence


def test_a_sequence_of_one_class_is_a_note():
    model, batch = net(), (torch.randn(8, 8, 4), torch.ones(8, 8, dtype=torch.long))
    (found,) = audit(model, batch, lambda batch: cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()))
    assert (found.rule, found.severity) == ("targets", "note")


def test_labels_that_the_step_makes_itself_may_be_alike():
    model = net(outputs=1)
    assert audit(model, X, lambda x: binary_cross_entropy_with_logits(model(x), torch.ones(16, 1))) == ()


def test_log_softmax_over_the_samples_is_found():
    found = found_in(net(nn.LogSoftmax(0)), nll_loss, CLASSES, None)
    assert any((one.rule, one.severity, one.advice) == ("batch_mixing", "alarm", "use dim=1") for one in found)


def test_a_detach_that_leaves_parameters_without_gradient_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    step = lambda batch: cross_entropy(model[1](model[0](batch[0]).detach()), batch[1])  # noqa: E731
    (found,) = audit(model, (X, CLASSES), step)
    assert found.rule == "cut"
    assert found.evidence.startswith(f"detach() at test_findings.py:{step.__code__.co_firstlineno}")
    assert "2 of 4 trainable parameters: 0.bias, 0.weight" in found.evidence


@pytest.mark.parametrize("create_graph", [False, True])
def test_derivatives_in_a_term_of_the_loss_need_a_graph(create_graph):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def step(batch):
        x = batch.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=create_graph, retain_graph=True)
        return slope.square().mean() + 2 * model(batch).square().mean()

    found = audit(model, X, step)
    assert [(one.rule, one.severity) for one in found] == ([] if create_graph else [("cut", "alarm")])
    if found:
        line = step.__code__.co_firstlineno + 2
        assert found[0].evidence.startswith(f"a term of the loss comes from grad() at test_findings.py:{line}")
        assert found[0].advice == "call torch.autograd.grad with create_graph=True"


@pytest.mark.parametrize("is_of_student", [False, True])
def test_a_loss_function_of_a_frozen_model_alone_is_a_term_that_trains_nothing(is_of_student):
    student, teacher = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)

    def step(batch):
        x, y = batch
        told, output = teacher(x).softmax(1), student(x)
        given = (output if is_of_student else teacher(x)).log_softmax(1)
        return cross_entropy(output, y) + 0.5 * kl_div(given, told, reduction="batchmean")

    found = audit(nn.ModuleList([student, teacher]), (X, CLASSES), step)
    alarms = [one for one in found if one.severity == "alarm"]
    assert [one.rule for one in alarms] == ([] if is_of_student else ["cut"])
    if alarms:
        assert f"kl_div at test_findings.py:{step.__code__.co_firstlineno + 4}" in alarms[0].evidence


JOINED = {
    "detach": lambda term, other: term + other.detach(),
    "item": lambda term, other: term + other.item(),
    "item, as a tensor": lambda term, other: term + torch.tensor(other.item()),
    "in a stack": lambda term, other: torch.stack([term, other.detach()]).mean(),
}


@pytest.mark.parametrize("name", JOINED)
def test_a_term_that_is_detached_is_an_alarm(name):
    model = nn.Linear(4, 3)
    step = lambda x: JOINED[name](model(x).square().mean(), model(x).mean())  # noqa: E731
    (found,) = audit(model, X, step)
    assert (found.rule, found.severity) == ("cut", "alarm")
    assert found.evidence.endswith("which passes no gradient back, so this term has no effect")


CONSTANT = {
    "its dtype alone": lambda output: torch.arange(3.0).type_as(output).sum(),
    "the share that is finite": lambda output: output.isfinite().float().mean(),
    "a margin that is kept": lambda output: (output.detach() - 1e6).relu().mean(),
    "filled anew": lambda output: output.detach().clone().fill_(7.0).mean(),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_a_term_that_weights_do_not_move_needs_no_gradient(name):
    model = nn.Linear(4, 3)
    step = lambda x: model(x).square().mean() + CONSTANT[name](model(x))  # noqa: E731
    assert audit(model, X, step) == ()


@pytest.mark.parametrize(
    ("p", "training", "count"), [(0.95, True, 1), (0.95, False, 0), (0.5, True, 0), (1.0, True, 0)]
)
def test_a_dropout_that_leaves_next_to_nothing_is_an_alarm_as_module_and_as_function(p, training, count):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    step = lambda batch: cross_entropy(  # noqa: E731
        model[1](nn.functional.dropout(model[0](batch[0]), p, training)), batch[1]
    )
    found = [one for one in audit(model, (X, CLASSES), step) if one.rule == "dropout"]
    assert len(found) == count
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(p), nn.Linear(8, 3)).train(training)
    found += [one for one in found_in(module, cross_entropy, CLASSES, None) if one.rule == "dropout"]
    assert len(found) == 2 * count
    for one in found:
        assert f"drops {p:.0%} of the values, and scales the rest by {1 / (1 - p):.3g}" in one.evidence
        assert one.advice == f"set p={1 - p:.2g}, or at most 0.5"
        assert one.is_hard
    of_data = nn.Sequential(nn.Dropout(p), nn.Linear(4, 3)).train(training)
    assert not any(one.is_hard for one in found_in(of_data, cross_entropy, CLASSES, None) if one.rule == "dropout")


def test_a_stopped_gradient_that_leaves_every_parameter_another_way_is_no_fault():
    online, head = nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.ModuleList([online, head])
    step = lambda x: -cosine_similarity(head(online(x)), online(x + 0.1).detach()).mean()  # noqa: E731
    assert audit(model, X, step) == ()


def test_a_teacher_that_stands_in_the_place_of_the_output_is_no_output():
    student, teacher = nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3), nn.ReLU()).requires_grad_(False)
    assert audit(nn.ModuleList([student, teacher]), X, lambda x: mse_loss(teacher(x), student(x))) == ()


def test_an_output_that_is_changed_in_place_no_longer_has_the_range_of_its_function():
    model = net(nn.Sigmoid())

    def step(batch):
        output = model(batch[0]).clone()
        output[:, 2:] = output[:, 2:] * 8 - 4
        return mse_loss(output, batch[1])

    assert audit(model, (X, REAL[:, None].expand(16, 3)), step) == ()


def test_many_tensors_in_a_list_are_read_in_a_moment():
    model = net(outputs=1)
    began = time.process_time()
    audit(model, X, lambda x: torch.stack([model(x[:1]).sum()] * 20_000).mean())
    assert time.process_time() - began < 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_in_the_batch_is_read_without_an_error():
    batch = X, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    model = net()
    assert audit(model, batch, lambda batch: model(batch[0]).square().mean()) == ()


@pytest.mark.parametrize("dropout", [nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_layers_in_evaluation_mode_are_a_note(dropout):
    model = net(nn.BatchNorm1d(3), dropout())
    model(X)  # its statistics are those of data
    model[1].eval()
    (found,) = found_in(model, cross_entropy, CLASSES, None)
    assert (found.rule, found.severity) == ("eval_mode", "note")
    assert found.evidence.startswith("1 of 2 layers")


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_baseline_that_gets_no_gradient_may_be_in_evaluation_mode(is_trained):
    make = lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 1))  # noqa: E731
    model = nn.ModuleDict({"policy": make(), "baseline": make().eval()})

    def step(x):
        with torch.set_grad_enabled(is_trained):
            expected = model["baseline"](x)
        return (model["policy"](x) - expected - 1).square().mean()

    assert ["eval_mode" for one in audit(model, X, step) if one.rule == "eval_mode"] == ["eval_mode"] * is_trained


@pytest.mark.parametrize("is_late", [True, False])
def test_the_mode_is_that_of_the_layers_while_they_ran(is_late):
    model = net(nn.Dropout())

    def step(x):
        model.train(is_late)
        loss = cross_entropy(model(x), CLASSES)
        model.train(not is_late)  # as for samples of it
        return loss

    assert [one.rule for one in audit(model, X, step)] == ["eval_mode"] * (not is_late)


def test_a_norm_in_evaluation_mode_that_has_never_seen_data_is_an_alarm():
    model = net(nn.BatchNorm1d(3))
    model[1].eval()
    before = model[0](X)
    assert torch.allclose(model[1](before), before, rtol=1e-4)  # the oracle: it normalizes nothing
    (found,) = found_in(model, cross_entropy, CLASSES, None)
    assert (found.rule, found.severity, found.advice) == ("eval_mode", "alarm", "call train() on them")
    assert found.evidence.endswith(
        "the running statistics of 1 of them are still at their initial values, which normalize nothing"
    )


@pytest.mark.parametrize("is_target", [True, False])
def test_what_an_output_is_compared_with_needs_no_gradient_unlike_the_output(is_target):
    """As the actions in the targets of a critic, whose actor another loss trains in later steps."""
    model = nn.ModuleDict({"actor": net(), "critic": nn.Linear(7, 1)})

    def step(x):
        with torch.no_grad():
            actions = model["actor"](x)
            aimed = 0.9 * model["critic"](torch.cat([x, actions], 1)) + x[:, :1]
        given = x[:, :3] if is_target else actions
        return mse_loss(model["critic"](torch.cat([x, given], 1)), aimed)

    found = [one for one in audit(model, X, step) if one.rule == "cut"]
    assert len(found) == (not is_target)
    for one in found:
        assert "linear() under torch.no_grad() at" in one.evidence
        assert "remove the torch.no_grad()" in one.advice


@pytest.mark.parametrize("is_taken_away", [True, False])
def test_a_number_that_is_added_and_taken_away_again_cuts_nothing(is_taken_away):
    model = net()

    def step(x):
        evidence, surrogate = model(x).logsumexp(1).mean(), model(x).square().mean()
        if is_taken_away:  # as pyro does
            surrogate = evidence + surrogate
            return evidence.item() + (surrogate - surrogate.item())
        return surrogate + evidence.item()

    assert [one.rule for one in audit(model, X, step)] == ["cut"] * (not is_taken_away)


def test_a_straight_through_estimator_is_no_cut():
    model = net(nn.Linear(3, 3))
    model.codes = nn.Parameter(torch.tensor([[-1.0], [0.0], [1.0]]))

    def quantized(x):
        given = model[1](model[0](x))[:, :1]
        nearest = model.codes[(given - model.codes.T).abs().argmin(1)]
        return (given + (nearest - given).detach() - 2).square().mean()

    def cut(x):
        return (model[1](model[0](x).detach())[:, :1] - 2).square().mean()

    assert [one.rule for one in audit(model, X, quantized)] == []
    assert [one.rule for one in audit(model, X, cut)] == ["cut"]


@pytest.mark.parametrize(("momentum", "mean", "is_said"), [(0.0, 0.0, True), (0.0, 0.5, False), (0.1, 0.0, False)])
def test_running_statistics_that_never_move_from_0_and_1_are_an_alarm(momentum, mean, is_said):
    norm = nn.BatchNorm1d(3, momentum=momentum)
    norm.running_mean += mean
    found = [one for one in found_in(net(norm), cross_entropy, CLASSES, None) if one.rule == "eval_mode"]
    assert [(one.severity, one.module) for one in found] == [("alarm", "1")] * is_said
    norm(torch.randn(8, 3) + 7)  # the oracle: a batch of another mean moves them, or not
    assert (momentum == 0) == bool((norm.running_mean == mean).all())
    assert not is_said or "momentum=0 in 1 of 1 batch normalization layers keeps" in found[0].evidence


def test_a_frozen_part_in_training_mode_is_a_note_and_one_in_evaluation_mode_is_meant():
    teacher = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout()).requires_grad_(False)
    model = nn.ModuleDict({"teacher": teacher, "net": net()})
    step = lambda batch: (model["net"](batch) - model["teacher"](batch)).square().mean()  # noqa: E731
    (found,) = audit(model, X, step)
    teacher.eval()
    assert audit(model, X, step) == ()
    assert (found.rule, found.severity) == ("eval_mode", "note")
    assert found.evidence.startswith(
        "2 normalization or dropout layers in frozen modules are in training mode: teacher.1, teacher.2"
    )


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net(nn.BatchNorm1d(3), nn.Dropout(), nn.Softmax(1))

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.net(batch[0]), batch[1])


def test_a_lightning_module_needs_no_step():
    (found,) = audit(Classifier(), (X, CLASSES))
    assert (found.rule, found.module) == ("loss_input", "net.3")


def test_a_step_and_a_loss_that_is_a_tensor_are_asked_for():
    with pytest.raises(TypeError, match="model of type Sequential has no training_step: pass step="):
        audit(net(), (X, CLASSES))
    with pytest.raises(TypeError, match="a loss of type float"):
        audit(net(), X, lambda batch: 1.0)


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_model_and_the_random_state_are_put_back_also_after_an_error(is_broken):
    model = Classifier()
    model.net[0].weight.grad = torch.ones(3, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()

    def step(batch):
        loss = model.training_step(batch, 0)
        if is_broken:
            raise ZeroDivisionError
        return loss

    with pytest.raises(ZeroDivisionError) if is_broken else contextlib.nullcontext():
        audit(model, (X, CLASSES), step)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(model.net[0].weight.grad, torch.ones(3, 4))
    assert model.net[0].bias.grad is None


def test_a_loss_of_infinities_is_read_without_an_error():
    assert audit(net(outputs=1), (X, REAL), lambda batch: (batch[1] * math.inf).sum()) == ()


def test_findings_are_printed_as_sentences_in_a_line_each():
    model = net(nn.Softmax(1))
    found = audit(model, X, lambda batch: cross_entropy(model(batch), CLASSES))
    assert isinstance(found, tuple)
    assert str(found).startswith("alarm: loss_input in 1: ")
    assert ". Try: " in str(found)
    assert str(found) == repr(found) == "\n".join(map(str, found))


def test_a_softmax_of_probabilities_is_an_alarm_with_the_most_that_it_can_give():
    gate, layers = nn.Linear(4, 8), nn.Linear(4, 8)

    def step(x):
        likely = gate(x).softmax(-1)
        shares = likely.view(4, 4, 8).flatten(0, 1).softmax(1).mean(0)
        return (layers(x) * likely).square().mean() + 8 * shares.square().sum()

    (found,) = audit(nn.ModuleList([gate, layers]), X, step)
    most = torch.eye(8, dtype=torch.float64).softmax(1).max()
    assert (found.rule, found.severity) == ("loss_input", "alarm")
    assert f"the largest probability is at most {most:.2g} (uniform is {1 / 8:.2g})" in found.evidence


@pytest.mark.parametrize(
    "between", [lambda p: p.log(), lambda p: p / 0.1, lambda p: p.view(4, 4, 4).mT, lambda p: p[:, :2]]
)
def test_a_softmax_of_what_was_computed_of_probabilities_is_left_alone(between):
    gate = nn.Linear(4, 4)
    assert audit(gate, X, lambda x: between(gate(x).softmax(-1)).softmax(-1).square().mean()) == ()


@pytest.mark.parametrize(
    ("count", "small", "rules"), [(1, 0.0, ["no_influence"]), (1, 1e-20, ["no_influence"]), (2, 0.0, [])]
)
def test_the_weight_of_one_expert_that_is_divided_by_itself_is_an_alarm(count, small, rules):
    gate, experts = nn.Linear(4, 8), nn.Linear(4, 8)

    def step(x):
        weights, picked = gate(x).softmax(-1).topk(count)
        weights = weights / (weights.sum(-1, keepdim=True) + small)
        return (experts(x).gather(1, picked) * weights).sum(-1).square().mean()

    found = audit(nn.ModuleList([gate, experts]), X, step)
    assert [one.rule for one in found if one.severity == "alarm"] == rules


@pytest.mark.parametrize(
    "divided",
    [
        lambda x, other: x / (x.sum(-1, keepdim=True) + 1),
        lambda x, other: x / (x.sum(-1, keepdim=True) + other),
        lambda x, other: x / x.sum(-1, keepdim=True).clamp(min=1.0),
    ],
)
def test_a_number_divided_by_itself_and_something_else_is_left_alone(divided):
    gate, other = nn.Linear(4, 1), nn.Linear(4, 1)

    def step(x):
        return divided(gate(x).exp(), other(x).exp()).square().mean() + other(x).square().mean()

    assert [one for one in audit(nn.ModuleList([gate, other]), X, step) if one.rule == "no_influence"] == []


def of_one_output(loss):
    return audited(nn.Linear(4, 1), X, REAL[:, None], loss)


UNBOUNDED = {
    "minus a part of it": (lambda o, t: (-0.5 * mse_loss(o, t)).mean(), -0.5),
    "minus a square by hand": (lambda o, t: -((t - o) ** 2).mean(), -1),
    "minus absolute values": (lambda o, t: -(o - t).abs().sum() / 4, -4),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_loss_that_is_minus_an_error_is_an_alarm_with_its_factor(name):
    loss, factor = UNBOUNDED[name]
    (found,) = of_one_output(loss)
    assert (found.rule, found.severity) == ("unbounded_loss", "alarm")
    assert found.evidence.startswith(f"the loss is {factor:.3g} times the")
    assert "test_findings.py:" in found.evidence


@pytest.mark.parametrize(("maximize", "factor", "count"), [(True, -1, 0), (True, 1, 1), (False, -1, 1)])
def test_what_an_optimizer_maximizes_has_the_other_sign(maximize, factor, count):
    model, target = nn.Linear(4, 1), REAL[:, None]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, maximize=maximize)
    monitor = watched(model, lambda model: factor * mse_loss(model(X), target), batch=(X, target), optimizer=optimizer)
    assert [one.rule for one in monitor.verdicts].count("unbounded_loss") == count


SOUND = {
    "a sum over its number": lambda o, t: ((o - t) ** 2).sum() / 16,
    "an error less another": lambda o, t: mse_loss(o, t) - 0.1 * o.square().mean(),
    "a likelihood": lambda o, t: -torch.distributions.Normal(o, 1.0).log_prob(t).mean(),
    "a critic without targets": lambda o, t: -o.mean(),
    "labels that the step makes": lambda o, t: -binary_cross_entropy_with_logits(o, torch.zeros(16, 1)),
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said_of_a_sound_loss(name):
    assert of_one_output(SOUND[name]) == ()


def test_a_loss_of_0_without_a_gradient_is_a_note():
    found = found_in(net(), lambda o, t: (0 * cross_entropy(o, t)).relu(), CLASSES, None)
    assert [(finding.rule, finding.severity) for finding in found] == [("cut", "note")]
