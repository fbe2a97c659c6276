"""What `HealthMonitor` looks at, when, and what it does with verdicts."""

import math

import pytest
import torch
from callbacks.heard import looks_of
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from toys import ALWAYS, RecordsLoss, Toy, batches, fit, mlp, scalars

from hookboard import Finding, HealthMonitor, Rule
from hookboard.board.folders import open_folders
from hookboard.model.sites import Site
from hookboard.tracing.questions import RULES


def test_it_looks_at_the_first_step_and_at_the_trainers_cadence_with_the_losses_of_all_steps():
    model = RecordsLoss(mlp())
    looks = looks_of(model, batches(*[4] * 10), log_every_n_steps=5)
    assert [look.step for look in looks] == [0, 4, 9]
    losses = [loss for look in looks for loss in look.losses]
    assert [loss.step for loss in losses] == list(range(10))
    assert [loss.value for loss in losses] == pytest.approx([loss.item() for loss in model.losses], rel=1e-12)


def test_the_loss_of_accumulated_batches_is_their_mean():
    model = RecordsLoss(mlp())
    looks = looks_of(model, batches(*[4] * 8), log_every_n_steps=1, accumulate_grad_batches=4)
    expected = [sum(model.losses[:4]).item() / 4, sum(model.losses[4:]).item() / 4]
    assert [loss.value for look in looks for loss in look.losses] == pytest.approx(expected, rel=1e-6)


def test_the_loss_under_a_grad_scaler_carries_no_scale():
    model = RecordsLoss(mlp())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    looks = looks_of(model, batches(4, 4), plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
    assert [loss.value for look in looks for loss in look.losses] == pytest.approx(
        [loss.item() for loss in model.losses], rel=1e-3
    )


def test_a_look_has_the_batch_itself_and_what_the_optimizers_do_with_each_weight():
    data = batches(5)
    (look,) = looks_of(Toy(mlp()), data)
    reading = look.of("", "input")
    assert reading.moments.mean == pytest.approx(data[0].double().mean().item())
    assert reading.channels[:, 1] == pytest.approx(data[0].double().mean(0).numpy())
    assert look.stepped.keys() == {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}
    assert {(s.optimizer, s.rate, s.is_adaptive) for s in look.stepped.values()} == {("SGD", 0.01, False)}


def test_a_validation_loop_is_looked_at():
    options = {"limit_val_batches": 2, "val_check_interval": 1}
    seen = looks_of(Toy(mlp()), batches(4, 4, 4), keep=lambda run: run.evaluation, **options)
    assert seen[0] is None
    assert Site("net.0", "output") in seen[-1].readings


def test_the_verdicts_behind_the_last_step_of_a_fit_know_its_last_evaluation():
    def judge(run):
        return [Finding("net.0", "odd", "look")] if run.evaluation is not None else []

    rules = [Rule("steps", judge, at_once=True), Rule("both", judge, at_once=True, of="evaluation")]
    monitor = HealthMonitor(rules=rules)
    fit(None, Toy(mlp()), batches(4, 4, 4), monitor, limit_val_batches=2, num_sanity_val_steps=0)
    assert [verdict.rule for verdict in monitor.verdicts] == ["both"]


def test_a_finding_becomes_a_verdict_when_it_has_lasted_for_the_window():
    monitor = HealthMonitor(rules=ALWAYS, window=4)
    fit(None, Toy(mlp()), batches(*[4] * 3), monitor)
    assert monitor.verdicts == ()
    fit(None, Toy(mlp()), batches(*[4] * 4), monitor)
    (verdict,) = monitor.verdicts
    assert (verdict.severity, verdict.rule, verdict.module) == ("alarm", "always", "net.0")
    assert (verdict.since, verdict.until) == (0, None)


@pytest.mark.parametrize("stop_on", ["alarm", ["always"]])
def test_stop_on_ends_the_fit_and_says_why(stop_on, lines):
    run = fit(None, Toy(mlp()), batches(*[4] * 10), HealthMonitor(rules=ALWAYS, window=2, stop_on=stop_on))
    assert run.global_step == 2
    assert any("stopped training after step 1 because of always in net.0. It is there." in line for line in lines)


class GivesNaNOnce(nn.Module):
    """At its sixth call alone, whatever comes in."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x / 0 if self.calls == 6 else x


def test_a_nan_that_does_not_come_again_is_not_blamed_on_what_it_has_spoiled_by_the_next_look():
    monitor = HealthMonitor(rules="nonfinite", nonfinite="exact", every_n_steps=10)
    fit(None, Toy(nn.Sequential(nn.Linear(4, 4), GivesNaNOnce(), nn.Linear(4, 3))), batches(*[4] * 30), monitor)
    (verdict,) = monitor.verdicts
    assert (verdict.module, verdict.since, verdict.batch_idx) == ("net.0", 5, 5)
    assert "came from div()" in verdict.evidence
    assert "optimizer" not in verdict.evidence


@pytest.mark.parametrize("stop_on", ["nonfinite", "alarm"])
def test_a_nan_ends_the_fit_in_its_own_step_between_two_looks(stop_on, lines):
    data = batches(*[4] * 40)
    data[7][0, 0] = math.nan
    monitor = HealthMonitor(nonfinite="exact", stop_on=stop_on, every_n_steps=20)
    model = Toy(mlp())
    run = fit(None, model, data, monitor)
    assert run.global_step == 8, "the step of the NaN is the last"
    assert model.net[0].weight.isnan().any(), "and it is made, as docs/health.md says"
    (line,) = [each for each in lines if "stopped training" in each]
    assert "stopped training after step 7 because of nonfinite in net.0." in line


@pytest.mark.parametrize(
    ("rules", "asked"),
    [
        ("!dead_units", set(RULES) - {"dead_units"}),
        (["!dead_units", "!update_*"], set(RULES) - {"dead_units", "update_too_large", "update_too_small"}),
        (["nonfinite", "dead_units", "!dead_units"], {"nonfinite"}),
        (["nonfinite", "!dead_units"], {"nonfinite"}),
        ("update_*", {"update_too_large", "update_too_small"}),
        (["update_too_large", "update_*"], {"update_too_large", "update_too_small"}),
        (["re:update_.*", "update_too_large"], {"update_too_large", "update_too_small"}),
        (["*", "!dead_units", ALWAYS], {*RULES, "always"} - {"dead_units"}),
        (["toys.ALWAYS", "nonfinite", "!always"], {"nonfinite"}),
    ],
)
def test_rules_are_selected_and_excluded_by_names_and_patterns_as_modules_are(rules, asked):
    names = [rule.name for rule in HealthMonitor(rules=rules)._rules()]
    assert len(names) == len(asked)
    assert set(names) == asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": "always"}, "unknown rule 'always'"),
        ({"rules": ["no.such.module.RULE"]}, "rule 'no.such.module.RULE' cannot be imported"),
        ({"rules": "math.pi"}, "rule 'math.pi' is a float, not a hookboard.Rule"),
        ({"rules": [ALWAYS, ALWAYS]}, "'always' is the name of two rules"),
        ({"rules": ALWAYS, "stop_on": "alwais"}, "did you mean 'always'"),
        ({"rules": []}, r"rules=\[\]: pass the name of a rule.*leave it out to use all rules"),
        ({"rules": "!dead_unit"}, "unknown rule 'dead_unit'; did you mean 'dead_units'"),
        ({"rules": ["nonfinite", "!no_such"]}, "unknown rule 'no_such'"),
        ({"rules": "updates_*"}, r"unknown rule 'updates_\*'; did you mean 'not_updated'"),
        ({"rules": ["nonfinite", "!nonfinite"]}, r"rules=\['nonfinite', '!nonfinite'\] selects no rule"),
        ({"rules": Rule("mine", len, of="step")}, "rules: 'mine' has of='step', which only built-in rules can have"),
        ({"rules": "!re:("}, r"rules: 're:\(' is not a regular expression"),
        ({"rules": "!dead_units", "stop_on": "dead_units"}, r"not in rules= \(.* and \d+ more\); add it"),
        ({"rules": "nonfinite", "stop_on": ["dead_units"]}, r"'dead_units' is not in rules= \(nonfinite\)"),
    ],
)
def test_a_bad_option_is_an_error_that_says_what_is_valid(options, message):
    with pytest.raises(ValueError, match=message):
        HealthMonitor(**options)


def test_a_fit_without_validation_says_nothing_of_it(lines):
    fit(None, Toy(mlp()), batches(4, 4), HealthMonitor(rules=[Rule("never", lambda run: ())]))
    assert not any("nothing in validate" in line for line in lines)


def test_rare_tokens_of_a_large_embedding_are_well():
    monitor = HealthMonitor(rules=["no_gradient", "not_updated"], window=2)
    tokens = [(batch[:, 0] > 0).long() + 1 for batch in batches(*[8] * 6)]  # rows 1 and 2; every fourth is measured
    fit(None, Toy(nn.Sequential(nn.Embedding(5000, 32), nn.Linear(32, 3))), tokens, monitor)
    assert monitor.verdicts == ()


class Silent(RecordsLoss):
    """Logs nothing."""

    def log(self, *args, **named):
        pass


@pytest.mark.parametrize(("model", "tag"), [(Silent, "health/loss"), (RecordsLoss, "loss")])
def test_the_loss_of_each_measured_step_is_written_and_drawn_where_the_model_logs_none(tmp_path, model, tag):
    trained = model(mlp())
    fit(tmp_path, trained, batches(*[4] * 8), HealthMonitor(every_n_steps=4), log_every_n_steps=1)
    values = [float(trained.losses[step]) for step in (0, 3, 7)]
    assert list(scalars(tmp_path)["health/loss"].values()) == values
    board, (name,) = open_folders([tmp_path])
    drawn = board.run(board.logged_run(name))["loss"]
    assert drawn["tag"] == tag
    assert tag == "loss" or drawn == {"tag": tag, "steps": [0, 3, 7], "values": values}


def test_who_silences_information_still_sees_alarms(caplog):
    always = Rule("always", lambda run: [Finding("net", "odd", "look", "alarm")], at_once=True)
    with caplog.at_level("WARNING", logger="lightning.pytorch"):
        fit(None, Toy(nn.Linear(4, 3)), batches(8, 8), HealthMonitor(rules=always))
    assert sum("always in net" in line for line in caplog.messages) == 2  # when it came, and at the end
