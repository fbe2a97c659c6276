import html
import re
import warnings

import pytest

from hookboard.writers import Table, markdown

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what TensorBoard comes with
    from tensorboard.plugin_util import markdown_to_safe_html

BLOCKS = ["a|b", "\\|", "two\nlines", "x <script>y</script>", "&amp;", "# a"]
INLINE = ["`code`", "_under_ __score__", "*bold* [a](b) ![c](d)", "~~no~~"]


def cells(table):
    """The cells as a browser shows them, from TensorBoard's own HTML."""
    shown = re.findall(r"<td>(.*?)</td>", markdown_to_safe_html(markdown(table)), re.S)
    assert not any("<" in cell for cell in shown)
    return [html.unescape(cell) for cell in shown]


@pytest.mark.parametrize("text", BLOCKS + INLINE)
def test_no_text_breaks_the_table(text):
    table = Table(("one", "two"), ((text, "plain"), ("plain", text)))
    one_line = text.replace("\n", " ")
    assert cells(table) == [one_line, "plain", "plain", one_line]


def test_names_stay_readable_in_the_file():
    assert "self_attn.out_proj" in markdown(Table(("layer",), (("layers.7.self_attn.out_proj",),)))


def test_sentences_stand_above_and_below_the_table():
    shown = markdown_to_safe_html(markdown(Table(("a",), (("b",),), above="First.", below="Last.")))
    assert shown.index("First.") < shown.index("<table>") < shown.index("</table>") < shown.index("Last.")


def test_symbols_pass_through_tensorboard():
    assert "🔴" in markdown_to_safe_html(markdown(Table(("a",), (("🔴 alarm",),))))
