"""The table of causes."""

from hookboard.health.causes import CAUSES, OF_THE_WHOLE, ORDER
from hookboard.tracing.questions import RULES


def test_every_name_in_the_table_of_causes_and_in_the_order_is_that_of_a_rule():
    named = {name for cause in CAUSES for name in (cause.rule, *cause.effects)}
    assert named | {*ORDER} | OF_THE_WHOLE <= RULES.keys()
