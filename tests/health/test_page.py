import math
from dataclasses import replace

import numpy as np
import pytest
from health import trainings
from health.looks import layers, look, reading, row

from hookboard.health.judge import Judge
from hookboard.health.page import (
    CHARTED,
    TABLE_COLUMNS,
    TABLE_ROWS_MAX,
    Page,
    marks_of,
    pictures,
    table_of,
    values_of,
)
from hookboard.health.report import alarm_text, caveat, closing, folded_verdicts, headline
from hookboard.health.rule import Finding, Rule, Verdict
from hookboard.images.heat_map import MARKS
from hookboard.images.picture import MISSING, NOT_FINITE
from hookboard.model.layers import Layer
from hookboard.tracing.questions import RULES

ALARM = Verdict("alarm", "dead_units", "net.7", 20, None, "96 of 96 units gave 0.", "Lower the rate.")


def trained(count, looks=30, sick="net.7", every=10):
    """A judge that has seen `count` layers, of which one is ten times smaller than the others."""
    rng = np.random.default_rng(0)
    known = layers(*(Layer(f"net.{i}", "Linear", "linear", (f"net.{i}.weight",)) for i in range(count)))
    rule = Rule("small", lambda run: [Finding(sick, "It is small.", "Fix it.", "alarm")] if sick in known else [])
    judge = Judge([rule], known, window=3)
    for step in range(0, looks * every, every):
        judge.see(seen(known, step, sick, rng))
    return judge


def seen(known, step, sick, rng):
    readings = []
    for name in known:
        size = rng.uniform(0.9, 1.1) * (0.1 if name == sick else 1.0)
        readings += [
            reading(name, "output", [row(deviation=size), row(deviation=size, zeros=100 if name == sick else 0)]),
            reading(name, "grad_output", [row(deviation=1e-3 * size)]),
            reading(f"{name}.weight", "parameter_before", [row(deviation=1.0 + 1e-3 * step)]),
            reading(f"{name}.weight", "parameter_update", [row(deviation=1e-3 * size)]),
        ]
    return look(step, readings)


def written(judge, page=None):
    """All tags that the page of a judge writes."""
    page = page or Page()
    entries = [page.entry(judge.run, judge.verdicts), page.entry(judge.run, judge.verdicts, is_over=True)]
    tags = [tag for e in entries for kind in (e.scalars, e.pictures, e.tables, e.texts) for tag in kind]
    return sorted({*tags})


def test_the_tags_are_as_many_whatever_the_number_of_layers():
    tags = written(trained(40))
    assert len(tags) == 21  # and `health/before_nonfinite`, which is written elsewhere
    assert tags == written(trained(2))


def test_of_each_quantity_the_median_percentiles_and_the_layer_with_the_worst_verdict_are_written():
    judge = trained(41)
    scalars = Page().entry(judge.run, [ALARM]).scalars
    for quantity in CHARTED:
        values = judge.run.recent(quantity)[:, -1]
        oracle = [np.median(values), np.sort(values)[4], np.sort(values)[36]]  # the tenth and ninetieth of 0 to 40
        assert [scalars[f"health/{quantity}/{name}"] for name in ("median", "p10", "p90")] == pytest.approx(oracle)
        assert scalars[f"health/{quantity}/worst"] == values[7]


def test_each_picture_holds_the_whole_run_and_marks_the_sick_layer():
    judge = trained(20)
    drawn = pictures(judge.run, [ALARM])
    assert sorted(drawn) == sorted(f"health/{quantity}" for quantity in CHARTED)
    for picture in drawn.values():
        assert "20 layers" in picture.caption
        assert picture.caption.endswith(", marked: 1 alarm")
        assert (picture.pixels == MARKS["alarm"]).any()


def test_a_layer_without_a_value_is_left_out_of_a_picture_unless_it_is_sick():
    known = layers(*(Layer(f"net.{i}", "ReLU", "rectifier") for i in range(8)))
    judge = Judge([], known, 3)
    for step in range(3):
        outputs = [reading(name, "output", [row()]) for name in known]
        judge.see(look(step, outputs + [reading(name, "grad_output", [row()]) for name in ("net.0", "net.1")]))
    assert "of 2 of the 8 layers" in pictures(judge.run, [])["health/gradient_rms"].caption
    assert "of 3 of the 8 layers" in pictures(judge.run, [ALARM])["health/gradient_rms"].caption
    assert "health/update_ratio" not in pictures(judge.run, [])


def test_a_layer_whose_values_are_not_finite_is_not_drawn_as_one_without_a_value():
    judge = Judge([], layers(*(Layer(f"net.{i}", "ReLU", "rectifier") for i in range(3))), 3)
    for step in range(4):
        bad = row(count=0, mean=math.nan, nonfinite=9) if step == 3 else row()
        judge.see(look(step, [reading("net.0", "output", [row(), row()]), reading("net.1", "output", [bad, bad])]))
    drawn = pictures(judge.run, [])
    for quantity in ("activation_rms", "dead_fraction"):
        pixels = drawn[f"health/{quantity}"].pixels
        assert (pixels == NOT_FINITE).sum() > (pixels == MISSING).sum() == 0
    assert np.isnan(judge.run.recent("activation_rms")[1, -1]), "rules see no number"
    assert np.isnan(judge.run.course("activation_rms")[1, -1])


def test_the_mark_of_dead_units_stands_beside_the_row_that_shows_them():
    known = [Layer("fc", "Linear", "linear"), Layer("act", "ReLU", "rectifier"), Layer("head", "Linear", "linear")]
    judge = Judge([], layers(*known), 3)
    dead = row(mean=0.0, deviation=0.0, zeros=100)
    for step in range(3):
        outputs = {"fc": row(mean=-9.0), "act": dead, "head": row()}
        judge.see(look(step, [reading(name, "output", [each, each]) for name, each in outputs.items()]))
    drawn = pictures(judge.run, [replace(ALARM, module="fc")])
    tops = {}
    for quantity in ("activation_rms", "dead_fraction"):
        rows, columns = np.nonzero(drawn[f"health/{quantity}"].pixels == MARKS["alarm"])
        tops[quantity] = rows[columns > 340].mean()
    assert tops["dead_fraction"] - tops["activation_rms"] == pytest.approx(28, abs=1), "a row is 28 pixels high"


def test_an_alarm_about_a_container_marks_the_layers_in_it():
    judge = trained(12)
    of_all = Verdict("alarm", "nonfinite", "net", 0, 0, "It gave NaN.", "Look.")
    past = Verdict("note", "spike", "net.1", 0, 3, "It was.", "Wait.")
    assert marks_of(judge.run, [of_all]) == {f"net.{i}": "alarm" for i in range(12)}
    assert marks_of(judge.run, [past]) == {}


def test_pictures_are_rare_in_a_long_run_and_the_last_one_is_of_the_end():
    judge, page = Judge([], layers(Layer("a", "ReLU", "rectifier")), 3), Page()
    drawn = []
    for step in range(300):
        judge.see(look(step, [reading("a", "output", [row()])]))
        if page.entry(judge.run, []).pictures:
            drawn.append(step)
    assert len(drawn) < 15
    assert page.entry(judge.run, [], is_over=True).pictures
    assert not page.entry(judge.run, [], is_over=True).pictures, "nothing is new"


def test_the_table_is_written_again_when_there_is_something_new_to_say():
    judge, page = trained(3), Page()
    page.entry(judge.run, [])
    assert page.entry(judge.run, []).tables == {}
    assert list(page.entry(judge.run, [ALARM]).tables) == ["health/verdict"]
    assert page.entry(judge.run, [ALARM]).tables == {}
    assert page.entry(judge.run, [ALARM], is_over=True).tables == {}, "it was written at this very step"
    judge.see(look(999, []))
    assert list(page.entry(judge.run, [ALARM], is_over=True).tables) == ["health/verdict"]


def test_the_table_says_all_of_a_verdict_and_where_to_look():
    table = table_of(trained(20).run, [ALARM], look_at={"dead_units": "health/dead_fraction"})
    assert dict(zip(TABLE_COLUMNS, table.rows[0], strict=True)) == {
        "severity": "alarm",
        "rule": "dead_units",
        "layer": "net.7",
        "since": "20",
        "until": "now",
        "evidence": ALARM.evidence,
        "advice": ALARM.advice,
        "look at": "health/dead_fraction",
    }
    (line,) = [line for line in table.text.splitlines() if line.startswith("|") and "net.7" in line]
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "**▲ alarm**<br>dead_units",
        "net.7",
        "20 to<br>now",
        "96 of 96 units gave 0.<br>**Try:** Lower the rate.<br>**See:** health/dead_fraction",
    ]


def test_every_rule_that_judges_looks_points_at_a_chart_that_the_page_writes():
    without = {"overfitting", "ranks_differ", "experts"}  # what they judge is in no chart of the layers
    assert {name for name, rule in RULES.items() if not rule.look_at and rule.of != "step"} == without
    found = {rule.look_at for rule in RULES.values() if rule.look_at}
    assert found <= {*written(trained(2)), "health/before_nonfinite"}


def test_a_healthy_run_has_a_verdict_too():
    run = trained(62, sick="").run
    run.peak_rate = {"net.0.weight": 0.1}
    table = table_of(run, [], every_n_steps=10)
    first, last = table.text.split("\n\n")
    assert first == table.rows[0][0] == "No problems found in 62 layers, measured 30 times from step 0 to 290."
    assert last.startswith("Measured 62 layers at 30 steps from 0 to 290, one in 10. ")


def test_of_a_run_in_which_no_weight_has_changed_it_is_not_said_that_it_has_no_problems():
    readings = [reading(name, "output", [row()]) for name in ("net.0", "net.1")]
    readings.append(reading("net.0.weight", "parameter_before", [row()]))
    known = layers(Layer("net.0", "Linear", "linear", ("net.0.weight",)), Layer("net.1", "ReLU", "rectifier"))
    judge = Judge([], known, window=3)
    for step in range(5):
        judge.see(look(step, readings))
    assert headline(judge.run, []).startswith("No weight has changed in 2 layers, measured 5 times")


def test_alarms_are_to_be_fixed_before_notes_that_follow_from_nothing():
    note = replace(ALARM, severity="note")
    assert caveat([ALARM, note]) == "Fix alarms first; notes may be side effects or intentional."
    assert caveat([ALARM, replace(note, follows_from=("odd", ""))]) == caveat([ALARM]) == caveat([note]) == ""


def test_a_ratio_that_is_undefined_is_empty_in_the_heat_maps_and_not_marked_as_not_finite():
    """The first step of weights that are 0, as those of LoRA's B."""
    judge = Judge([], layers(Layer("b", "Linear", "linear", ("b.weight",))), window=3)
    for step in range(4):
        whole = reading("b.weight", "parameter_before", [row(deviation=0.0 if step == 0 else 1.0)])
        move = reading("b.weight", "parameter_update", [row(deviation=0.1)])
        judge.see(look(step, [whole, move]))
    assert judge.run.course("update_ratio")[0, 0] == math.inf
    np.testing.assert_array_equal(values_of(judge.run, "update_ratio"), [[math.nan, 0.1, 0.1, 0.1]])


def noted(names, advice="Look at {}."):
    return [Verdict("note", "dead_units", name, 5, None, f"{name} gave 0.", advice.format(name)) for name in names]


def test_what_is_said_alike_of_several_layers_is_one_row_and_one_line_with_their_list():
    judge = trained(62)
    many = noted([f"net.{i}" for i in range(22)])
    table = table_of(judge.run, [ALARM, *many])
    rows = [line for line in table.text.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 2
    assert "The same rule and advice apply to 22 layers: net.0," in rows[1].replace("<br>", " ")
    assert len(table.rows) == 23
    said = " ".join(" ".join(closing(judge.run, [ALARM, *many])).split())
    assert said.startswith("HealthMonitor: 1 alarm and 22 notes in 62 layers")
    assert said.count("dead_units in") == 2
    assert "more in" not in said


@pytest.mark.parametrize(
    "others",
    [
        noted(["net.1"]),
        noted(["net.1", "net.2"], advice="Look at the rate of {}."),
        [replace(one, rule="collapsed") for one in noted(["net.1", "net.2"])],
        [replace(one, until=9) for one in noted(["net.1", "net.2"])],
    ],
)
def test_two_layers_or_what_differs_in_more_than_numbers_is_said_one_by_one(others):
    given = [*noted(["net.0"]), *others]
    assert folded_verdicts(given, ["net.0", "net.1", "net.2"]) == given


def effect(rule, module, of):
    return Verdict("note", rule, module, 5, None, "It is late.", "Fix it first.", follows_from=of)


def test_what_follows_is_told_with_its_cause_and_not_by_itself():
    cause = (ALARM.rule, ALARM.module)
    late = [effect("no_gradient", f"net.{i}", cause) for i in (2, 0, 1)]
    given = [ALARM, *late, effect("not_learning", "", cause)]
    table = table_of(trained(9).run, given)
    rows = [line for line in table.text.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 1
    said = "96 of 96 units gave 0. Downstream effects: no_gradient in net.0, net.1, net.2; not_learning."
    assert said in rows[0].replace("<br>", " ")
    assert len(table.rows) == 5
    assert closing(trained(9).run, given)[-2].endswith("; not_learning. Try: Lower the rate.")


LOWER = " In a short run, lower every_n_steps."


@pytest.mark.parametrize(
    ("looks", "every", "times", "advice"), [(1, 10, "once", LOWER), (2, 10, "2 times", LOWER), (2, 1, "2 times", "")]
)
def test_too_few_looks_are_not_called_healthy(looks, every, times, advice):
    said = headline(trained(5, looks=looks, every=every, sick="").run, [])
    assert said == f"Not judged yet: 5 layers, measured only {times}; most rules need 3 measurements.{advice}"


@pytest.mark.parametrize(("last", "end"), [(math.nan, "; the last loss is nan."), (math.inf, "is inf."), (2.3, "9.")])
def test_a_loss_that_is_lost_is_said_first(last, end):
    run = trainings.seen(trainings.training(10, losses=[2.3] * 9 + [last]))
    assert headline(run, []).endswith(end)


def test_what_is_over_is_not_said_to_last():
    evidence = "9 of 32 units have been 0 at every measurement since step 24 (2 since step 241)."
    past = Verdict("note", "dead_units", "net.1", 24, 444, evidence, "Lower the rate.")
    said = table_of(trained(5).run, [past]).text
    told = "units were 0 at every measurement from step 24 to 444 (2 from step 241 to 444)."
    assert told in said.replace("<br>", " ")
    assert "since step 24" not in said


def test_the_table_names_the_worst_layers_of_the_charts():
    run, about_it = trained(20, sick="net.3").run, "layer in each chart at the last measurement: net.3 (RMS of act"
    sick = Verdict("note", "dead_units", "net.3", 24, None, "It is dead.", "Lower the rate.")
    assert f" The worst {about_it}" in table_of(run, [sick]).text.splitlines()[-1]
    of_none = table_of(run, []).text
    assert of_none.startswith("No problems found")
    assert f" The most unusual {about_it}" in of_none.splitlines()[-1]
    assert "worst" not in of_none


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("net.0 gave 0", "net.0 gave 0."),
        ("head gave 0", "head gave 0."),
        ("is it there?", "Is it there?"),
        ("it grows (it follows from spike in net.1)", "It grows (it follows from spike in net.1)."),
    ],
)
def test_what_rules_say_is_shown_in_sentences_of_one_style(given, shown):
    verdict = replace(ALARM, module="head", evidence=given, advice=given)
    run = trained(2).run
    assert table_of(run, [verdict]).rows[0][5:7] == (shown, shown)
    *said, more = closing(run, [verdict])
    assert " ".join(" ".join(said).split()).endswith(f": {shown} Try: {shown}")
    assert more == "  More: hookboard explain dead_units"
    assert f": {shown}\n" in alarm_text(verdict)


def test_a_long_table_is_cut_off_and_says_so():
    several = [Verdict("note", "spike", "", step, step, "a", "b", step) for step in range(TABLE_ROWS_MAX + 7)]
    table = table_of(trained(2).run, several)
    assert len(table.rows) == TABLE_ROWS_MAX
    assert table.text.startswith(f"{TABLE_ROWS_MAX + 7} notes in 2 layers")
    assert "\n\n7 more verdicts" in table.text
    assert table.text.count("spike") == TABLE_ROWS_MAX


def test_the_end_of_a_fit_is_told_in_a_few_lines_that_fit_a_terminal():
    judge = trained(20)
    long = Verdict("note", "spike", "net.3", 5, 5, "a very long sentence " * 8, "b\nc", batch_idx=3)
    lines = closing(judge.run, [ALARM, *[long] * 5], ["tensorboard --logdir logs"])
    assert lines[0] == "HealthMonitor: 1 alarm and 5 notes in 20 layers, measured 30 times from step 0 to 290."
    assert lines[1] == "  Fix alarms first; notes may be side effects or intentional."
    assert lines[2] == "  alarm: dead_units in net.7 since step 20: 96 of 96 units gave 0. Try: Lower the rate."
    assert "at step 5 (batch 3)" in lines[3]
    assert lines[-3:] == [
        "  and 1 more in the table health/verdict of the loggers and in monitor.verdicts",
        "  More: hookboard explain dead_units spike",
        "  Open: tensorboard --logdir logs",
    ]
    assert max(map(len, [*lines, *closing(trained(9, looks=1).run, [])])) <= 100
    assert len(lines) < 20
    assert closing(judge.run, [ALARM, *[long] * 5])[-2] == "  and 1 more in monitor.verdicts"


def test_a_new_alarm_is_told_in_full_in_lines_that_fit_a_terminal():
    assert " ".join(alarm_text(ALARM).split()) == (
        "HealthMonitor: alarm: dead_units in net.7 since step 20: 96 of 96 units gave 0. Try: Lower the rate. "
        "More: hookboard explain dead_units"
    )
    long = Verdict("alarm", "dead_units", "net.7", 20, None, "so\nmany " * 40, "")
    assert max(map(len, alarm_text(long).splitlines())) <= 100
    assert alarm_text(long).count("many") == 40


def test_of_a_loss_that_did_not_fall_the_headline_says_so_where_nothing_else_does():
    judge = trainings.judged([], trainings.training(120, losses=trainings.stuck(120)))
    assert headline(judge.run, []).endswith(f"; {judge.run.losses.harm}.")
    assert " is stuck at " in judge.run.losses.harm
    assert "stuck" not in headline(judge.run, [ALARM])
