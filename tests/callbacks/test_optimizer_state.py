"""What `ParameterLogger` says of the optimizer: its moments, `rms_t`, and the share that a step did not change."""

import math

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn.utils import prune
from toys import EachStep, Toy, batches, fit, mlp, scalars

from hookboard import ParameterLogger
from hookboard.measure import Recorder

MOMENTS = ["exp_avg_rms", "exp_avg_sq_rms"]


class Keeps(Toy):
    """The gradients that the optimizer was given and the parameters after each step, in float64."""

    def __init__(self, net, make, **options):
        super().__init__(net)
        self.make = lambda parameters: make(parameters, **options)
        self.gradients, self.after = [], [self.copies()]

    def copies(self):
        return {name: p.detach().clone() for name, p in self.named_parameters()}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0:
            self.gradients.append(
                {n: p.grad.double().clone() for n, p in self.named_parameters() if p.grad is not None}
            )
            self.after.append(self.copies())

    def configure_optimizers(self):
        return self.make(self.parameters())


def rms(tensor):
    return tensor.double().square().mean().sqrt().item()


def moments_by_hand(gradients, beta, power):
    """The exponential average of the gradients, to a power."""
    average = 0.0
    for gradient in gradients:
        average = beta * average + (1 - beta) * gradient**power
    return average


def logged(logger):
    return {r.site.name: r.statistics for r in logger.readings if r.site.role == "parameter"}


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.01}, {"accumulate_grad_batches": 2}])
def test_moments_are_those_that_adam_makes_of_the_gradients(tmp_path, make, options):
    model, logger = Keeps(mlp(), make, lr=0.01), ParameterLogger(statistics=MOMENTS)
    fit(tmp_path, model, batches(4, 5, 6, 7), logger, **options)
    written = scalars(tmp_path)
    for name, found in logged(logger).items():
        gradients = [step[name] for step in model.gradients]
        true = {
            "exp_avg_rms": rms(moments_by_hand(gradients, 0.9, 1)),
            "exp_avg_sq_rms": rms(moments_by_hand(gradients, 0.999, 2)),
        }
        assert found == pytest.approx(true, rel=1e-5)
        assert written[f"parameter_exp_avg_rms/{name}"][len(gradients) - 1] == pytest.approx(true["exp_avg_rms"], 1e-5)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.01}, {"accumulate_grad_batches": 2}])
def test_rms_t_compares_the_gradient_with_the_second_moment_without_its_bias(tmp_path, make, options):
    model, logger = Keeps(mlp(), make, lr=0.01, eps=1e-5), ParameterLogger(statistics="rms_t")
    kept = EachStep(logger)
    fit(tmp_path, model, batches(4, 5, 6, 7), logger, kept, **options)
    for step, readings in enumerate(kept.readings):
        for reading in readings:
            gradients = [each[reading.site.name] for each in model.gradients[: step + 1]]
            expected = moments_by_hand(gradients, 0.999, 2) / (1 - 0.999 ** len(gradients))
            true = rms(gradients[-1] / expected.clamp(min=1e-10).sqrt())
            assert reading.statistics == {"rms_t": pytest.approx(true, rel=1e-5)}


def test_rms_t_is_there_where_the_gradients_are_gone_at_the_end_of_the_batch(tmp_path):
    class Manual(Toy):
        automatic_optimization = False

        def training_step(self, batch):
            optimizer = self.optimizers()
            self.manual_backward(self.loss(self.net(batch)))
            optimizer.step()
            self.given = self.net[2].weight.grad.double()
            optimizer.zero_grad()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    model, logger = Manual(mlp()), ParameterLogger("net.2", statistics="rms_t")
    fit(tmp_path, model, batches(4), logger)
    true = rms(model.given / model.given.square().clamp(min=1e-16).sqrt())
    assert logged(logger)["net.2.weight"] == {"rms_t": pytest.approx(true, rel=1e-5)}


def test_of_several_steps_in_one_batch_rms_t_is_that_of_all_of_them(tmp_path):
    class Twice(Toy):
        automatic_optimization = False
        given = ()

        def training_step(self, batch):
            optimizer = self.optimizers()
            for part in batch.split(2):
                optimizer.zero_grad()
                self.manual_backward(self.loss(self.net(part)))
                optimizer.step()
                self.given = [*self.given, self.net[2].weight.grad.double()]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), eps=1e-5)

    model, logger = Twice(mlp()), ParameterLogger("net.2", statistics="rms_t")
    fit(tmp_path, model, batches(4), logger)
    parts = []
    for steps in (1, 2):
        expected = moments_by_hand(model.given[:steps], 0.999, 2) / (1 - 0.999**steps)
        parts.append(model.given[steps - 1] / expected.clamp(min=1e-10).sqrt())
    assert logged(logger)["net.2.weight"] == {"rms_t": pytest.approx(rms(torch.stack(parts)), rel=1e-5)}


def test_the_momentum_of_sgd_is_logged(tmp_path):
    model = Keeps(mlp(), torch.optim.SGD, lr=0.01, momentum=0.9)
    logger = ParameterLogger(statistics="momentum_buffer_rms")
    fit(tmp_path, model, batches(4, 4, 4), logger)
    for name, found in logged(logger).items():
        buffer = 0.0
        for step in model.gradients:
            buffer = 0.9 * buffer + step[name]
        assert found == {"momentum_buffer_rms": pytest.approx(rms(buffer), rel=1e-5)}


def test_the_moments_of_a_pruned_weight_are_those_of_its_original(tmp_path):
    net = mlp()
    prune.l1_unstructured(net[0], "weight", amount=5)
    model, logger = Keeps(net, torch.optim.Adam), ParameterLogger("net.0", statistics="exp_avg_rms")
    fit(tmp_path, model, batches(4), logger)
    true = rms(0.1 * model.gradients[0]["net.0.weight_orig"])
    assert logged(logger)["net.0.weight"]["exp_avg_rms"] == pytest.approx(true, rel=1e-5)


@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_the_unchanged_share_is_that_of_equal_elements_before_and_after(tmp_path, rate):
    model = Keeps(mlp().bfloat16(), torch.optim.SGD, lr=rate)
    logger = ParameterLogger(statistics="unchanged_fraction")
    fit(tmp_path, model, [b.bfloat16() for b in batches(4)], logger)
    before, after = model.after
    found = {r.site.name: r.statistics for r in logger.readings if r.site.role == "parameter_update"}
    for name, values in found.items():
        assert values == {"unchanged_fraction": (before[name] == after[name]).double().mean().item()}
    assert any(0 < values["unchanged_fraction"] < 1 for values in found.values()) == (rate > 0)


def test_what_the_optimizer_does_not_keep_is_said_in_one_line_and_has_no_curve(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr("hookboard.callbacks.measurement_state.inform", lines.append)
    logger = ParameterLogger(statistics=[*MOMENTS, "rms_t", "mean"])
    fit(tmp_path, Toy(mlp()), batches(4, 4), logger)
    assert len(lines) == 3
    assert all(": the optimizer keeps no such state of it, or none yet (shown once)" in line for line in lines)
    assert all(values.keys() == {"mean"} for values in logged(logger).values())


def test_a_frozen_parameter_beside_others_has_no_moments(tmp_path):
    net = mlp()
    net[0].weight.requires_grad = False
    logger = ParameterLogger(statistics=["rms_t", *MOMENTS])
    fit(tmp_path, Keeps(net, torch.optim.Adam), batches(4), logger)
    found = logged(logger)
    assert found.pop("net.0.weight") == {}
    assert all(values.keys() == {*MOMENTS, "rms_t"} for values in found.values())


def test_under_a_scaler_the_gradient_is_the_unscaled_one_and_a_skipped_step_has_none(tmp_path):
    class Overflows(nn.Module):
        def forward(self, x):
            self.step = getattr(self, "step", 0) + 1
            return x * (math.inf if self.step == 2 else 1.0)

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    model = Keeps(nn.Sequential(mlp(), Overflows()), torch.optim.AdamW, eps=1e-5)
    logger = ParameterLogger("net.0.2", statistics="rms_t")
    kept = EachStep(logger)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    fit(tmp_path, model, batches(4, 4, 4), logger, kept, plugins=plugin)
    first, second, third = ([r.statistics for r in readings] for readings in kept.readings)
    assert second == [{}, {}]
    true = model.gradients[0]["net.0.2.weight"]
    assert first[0] == {"rms_t": pytest.approx(rms(true / true.square().clamp(min=1e-10).sqrt()), rel=1e-4)}
    assert "rms_t" in third[0]


def test_no_hook_is_left_on_the_optimizer_and_the_run_is_the_same(tmp_path):
    def trained(*watching):
        model = Keeps(mlp(), torch.optim.AdamW, lr=0.01)
        trainer = fit(tmp_path, model, batches(4, 4), *watching)
        assert not trainer.optimizers[0]._optimizer_step_post_hooks
        return list(model.parameters())

    logger = ParameterLogger(statistics=["rms_t", *MOMENTS, "unchanged_fraction"])
    for one, other in zip(trained(), trained(logger), strict=True):
        assert torch.equal(one, other)


def test_an_optimizer_that_takes_no_hooks_has_no_rms_t_and_all_else(tmp_path):
    class Bare:
        """What Lightning asks of an optimizer that is none of torch's."""

        def __init__(self, inner):
            self.param_groups, self.defaults, self.state = inner.param_groups, inner.defaults, inner.state
            self.step, self.state_dict, self.load_state_dict = inner.step, inner.state_dict, inner.load_state_dict
            self.zero_grad = inner.zero_grad

    model = Keeps(mlp(), lambda parameters: Bare(torch.optim.AdamW(parameters)))
    logger = ParameterLogger("net.0", statistics=["rms_t", "exp_avg_rms"])
    fit(tmp_path, model, batches(4), logger)
    assert all(values.keys() == {"exp_avg_rms"} for values in logged(logger).values())
    assert logger.readings


@pytest.mark.parametrize(
    ("net", "make", "data"),
    [
        (mlp(), torch.optim.AdamW, batches(4, 5)),
        (mlp().bfloat16(), torch.optim.AdamW, [batch.bfloat16() for batch in batches(4, 5)]),
        (nn.Embedding(9, 4, sparse=True), torch.optim.SparseAdam, [torch.tensor([7, 2, 7]), torch.tensor([2, 0])]),
    ],
    ids=["float32", "bfloat16", "sparse"],
)
def test_rms_t_of_a_large_parameter_is_computed_in_blocks(tmp_path, monkeypatch, net, make, data):
    monkeypatch.setattr("hookboard.measure.values.MAX_BLOCK_VALUES", 10)
    opened, largest = Recorder.open, []

    def noting(recorder, site):
        observe = opened(recorder, site)
        if site.index != "rms_t":
            return observe
        return lambda tensor: (largest.append(tensor.numel()), observe(tensor))

    monkeypatch.setattr(Recorder, "open", noting)
    model, logger = Keeps(net, make, eps=1e-5), ParameterLogger(statistics="rms_t")
    kept = EachStep(logger)
    fit(tmp_path, model, data, logger, kept)
    for reading in kept.readings[1]:
        optimizer = model.optimizers().optimizer
        moment = optimizer.state[model.get_parameter(reading.site.name)]["exp_avg_sq"].double() / (1 - 0.999**2)
        gradient = model.gradients[1][reading.site.name].to_dense()
        true = rms(gradient / moment.clamp(min=1e-10).sqrt())
        assert reading.statistics == {"rms_t": pytest.approx(true, rel=1e-5)}
    assert max(largest) <= 10
