"""Gradients that vanish or explode on their way back."""

from dataclasses import replace

import pytest
import torch
from health.looks import reading, row
from health.runs import apart, falling, findings, harmed, linear, noise, outputs, run_of, weights, without_weights
from torch import nn
from toys import Toy, batches, fit

from hookboard import HealthMonitor
from hookboard.health.look import Stepped
from hookboard.health.rules.signal import GRADIENT_CHANGE_DECADES_ALARM, VANISHING
from hookboard.health.run import Run

NAMES = [f"fc{i}" for i in range(8)]
CHAIN = [linear(name) for name in NAMES]


def gradients(decades, growth=0.0, names=NAMES):
    """A look at which the gradients have these sizes, as powers of ten."""
    return lambda n: [
        *(outputs(name, noise(8)) for name in names),
        *(
            reading(name, "grad_output", [row(100, 0.0, 10.0 ** (size + growth * n))])
            for name, size in zip(names, decades, strict=True)
        ),
    ]


def steady(each):
    """From the last layer to the first, so many powers of ten in each."""
    return [each * (len(NAMES) - 1 - i) for i in range(len(NAMES))]


@pytest.mark.parametrize(("each", "fires"), [(0.0, False), (-0.4, False), (-0.6, True)])
def test_a_gradient_that_falls_by_three_powers_of_ten_vanishes(each, fires):
    run = run_of(CHAIN, gradients(steady(each)))
    assert bool(findings(VANISHING, run)) is fires


@pytest.mark.parametrize(("moved", "severity"), [(True, "note"), (False, "alarm")])
def test_a_gradient_that_is_gone_from_layers_that_have_learnt_is_a_note(moved, severity):
    def of_look(n):
        sizes = steady(-0.7 if n else 0.0)
        grads = [
            part
            for name, size in zip(NAMES, sizes, strict=True)
            for part in weights(name, gradient=noise(8, scale=10.0**size))
            if part.site.role != "parameter_grad" or moved or n
        ]
        updates = [reading(f"{name}.weight", "parameter_update", noise(8, scale=1e-3)) for name in NAMES]
        return [*gradients(sizes)(n), *grads, *(updates if moved else [])]

    (finding,) = findings(VANISHING, run_of(CHAIN, of_look, losses=falling))
    assert finding.severity == severity


@pytest.mark.parametrize(
    ("sizes", "module"),
    [([-4, -4, -4.1, -3.9, 0, 0.1, 0, 0], "fc4"), (steady(-0.6), ""), ([-12.0, *steady(-0.6)[1:]], "")],
    ids=["in one layer", "steadily", "steadily, and the first layer gets what rounding leaves"],
)
def test_the_layer_is_named_that_loses_most_of_the_gradient_if_it_is_one(sizes, module):
    (finding,) = findings(VANISHING, run_of(CHAIN, gradients(sizes)))
    assert finding.module == module
    assert ("steadily, by a factor of" in finding.evidence) is (module == "")


@pytest.mark.parametrize(
    ("each", "count", "losses", "severity", "is_hard"),
    [
        (-0.56, 6, falling, "note", False),
        (-0.56, 6, harmed, "alarm", False),
        (-0.7, 3, falling, "note", False),
        (-0.7, 6, falling, "alarm", True),
        (-0.7, 6, harmed, "alarm", True),
    ],
)
def test_it_is_an_alarm_with_harm_or_by_itself_where_nothing_is_left_after_the_first_steps(
    each, count, losses, severity, is_hard
):
    (finding,) = findings(VANISHING, run_of(CHAIN, gradients(steady(each)), count=count, losses=losses))
    assert (finding.severity, finding.is_hard) == (severity, is_hard)


def test_a_branch_that_gets_little_is_healthy_where_the_layers_before_it_get_their_gradient():
    assert not findings(VANISHING, run_of(CHAIN, gradients([0, -6, -6, 0, -6, -6, 0, 0])))
    assert not findings(VANISHING, run_of(CHAIN, gradients([-6, 0, -6, 0, 0, 0, 0, 0])))  # it begins with one
    assert findings(VANISHING, run_of(CHAIN, gradients([-6, -6, -6, 0, 0, 0, 0, 0])))


def test_zeros_are_not_the_matter_of_this_rule():
    read = gradients([0] * 8)
    zero = [reading(name, "grad_output", [row(100, 0.0, 0.0, zeros=100)]) for name in NAMES[:4]]
    assert not findings(VANISHING, run_of(CHAIN, lambda n: [*read(n)[:8], *zero, *read(n)[12:]]))


def test_gradients_of_branches_side_by_side_are_not_compared_as_if_one_fed_the_other():
    run = run_of(CHAIN, gradients([-6] * 4 + [0] * 4), losses=harmed)
    assert findings(VANISHING, run)
    run.facts = apart(**{name: NAMES[:i] if i < 4 else NAMES[4:i] for i, name in enumerate(NAMES)})  # two chains
    assert not findings(VANISHING, run)
    run = run_of(CHAIN, gradients(steady(-6 / 7)), losses=harmed)
    run.facts = apart(**{name: NAMES[:i] for i, name in enumerate(NAMES)})
    assert findings(VANISHING, run)


def test_a_model_of_three_layers_has_no_course():
    run = run_of(CHAIN[:3], gradients([-6, -3, 0], names=NAMES[:3]))
    assert not findings(VANISHING, run)


RELU, TANH = without_weights("relu"), without_weights("tanh", "bounded", "Tanh")


@pytest.mark.parametrize(
    ("activations", "advice"),
    [
        ([RELU], "use an initialization that suits the activation (He for ReLU)."),
        ([RELU, TANH], "Use ReLU or GELU in place of Tanh, use He initialization (nn.init.kaiming_uniform_), and add"),
        ([], "use an initialization that suits the activation."),
    ],
    ids=["ReLU", "one of each", "none that is a module"],
)
def test_advice_names_only_activations_that_the_model_has(activations, advice):
    layers = [CHAIN[0], *activations, *CHAIN[1:]]
    first, *others = steady(-0.6)
    sizes = [first] * (1 + len(activations)) + others
    (finding,) = findings(VANISHING, run_of(layers, gradients(sizes, names=[layer.name for layer in layers])))
    assert advice in finding.advice


def moved(change, rate=0.1, size=-0.7):
    """The severity after three looks in the first steps, with this RMS of the update of the first layer."""
    sizes = {"parameter_before": 0.1, "parameter_grad": 1e-9, "parameter_update": change}
    weight = [reading("fc0.weight", role, [row(64, 0.0, value)]) for role, value in sizes.items()]
    run = Run({layer.name: layer for layer in CHAIN}, 3)
    for look in run_of(CHAIN, lambda n: [*gradients(steady(size))(n), *weight], count=3).looks:
        run.see(replace(look, stepped={"fc0.weight": Stepped("SGD", rate, False)}))
    return [finding.severity for finding in findings(VANISHING, run)]


def test_a_gradient_so_small_that_it_moves_nothing_is_an_alarm_at_once():
    assert moved(0.0) == ["alarm"]
    assert moved(1e-10) == ["note"]
    assert moved(0.0, rate=0.0) == ["note"]
    assert moved(0.0, size=-0.99 * GRADIENT_CHANGE_DECADES_ALARM / 6) == ["note"]


@pytest.mark.trains
def test_with_few_looks_a_gradient_that_vanishes_is_the_cause_all_the_same(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(
        *(layer for i in range(49) for layer in (nn.Linear(4, 16) if not i else nn.Linear(16, 16), nn.ReLU())),
        nn.Linear(16, 4),
    )
    labels = torch.arange(8) % 4
    model = Toy(net, lambda y: nn.functional.cross_entropy(y, labels))
    monitor = HealthMonitor(every_n_steps=1)
    fit(tmp_path, model, batches(*[8] * 20), monitor)
    assert monitor.verdicts[0].rule == "vanishing_gradient"
    assert not [v for v in monitor.verdicts if v.rule == "not_updated" and v.severity == "alarm"]
