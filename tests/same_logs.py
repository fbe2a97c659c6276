"""What a Lightning Trainer logs, to be compared with what other loops log."""

from toys import Toy, fit, records

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger

OF_LIGHTNING = {"loss", "epoch", "hp_metric"}
"""Tags that a Trainer writes."""


def logged(folder):
    """The value of each step and tag, as it stands in the file."""
    values = [(event.step, value) for event in records(folder) for value in event.summary.value]
    return {(step, v.tag): content_of(v) for step, v in values if v.tag not in OF_LIGHTNING}


def content_of(value):
    """The bytes of a value; of a text without the advice of a callback that does nothing in other loops."""
    advice = b" To try other rates and targets on a copy, add the callback Checkup()."
    texts = [text.replace(advice, b"") for text in value.tensor.string_val]
    return texts or value.SerializeToString()


def in_a_trainer(folder, net, data, *callbacks, **options):
    fit(folder, Toy(net), data, *callbacks, **options)
    return logged(folder)


def everything():
    return [
        ActivationLogger(roles=["input", "output"], every_n_steps=2, histogram=True),
        GradientLogger(roles=["grad_output", "grad_input", "parameter_grad"], every_n_steps=2, histogram=True),
        ParameterLogger(every_n_steps=2, histogram=True),
        HealthMonitor(every_n_steps=2),
    ]


def assert_equal(mine, theirs):
    assert mine.keys() == theirs.keys()
    assert [key for key in mine if mine[key] != theirs[key]] == []
    assert mine
