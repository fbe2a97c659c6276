import html
import re
import warnings

import pytest

from hookboard.writers.entry import escaped, markdown

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what TensorBoard comes with
    from tensorboard.plugin_util import markdown_to_safe_html

BLOCKS = ["a|b", "\\|", "two\nlines", "x <script>y</script>", "&amp;", "# a"]
INLINE = ["`code`", "_under_ __score__", "*bold* [a](b) ![c](d)", "~~no~~"]


def cells(text):
    """The cells as a browser shows them, from TensorBoard's own HTML."""
    shown = re.findall(r"<td>(.*?)</td>", markdown_to_safe_html(text), re.S)
    assert not any("<" in cell for cell in shown)
    return [html.unescape(cell) for cell in shown]


@pytest.mark.parametrize("text", BLOCKS + INLINE)
def test_no_text_breaks_a_table(text):
    one_line = text.replace("\n", " ")
    table = markdown(["one", "two"], [[escaped(text), "plain"], ["plain", escaped(text)]])
    assert cells(table) == [one_line, "plain", "plain", one_line]


def test_names_stay_readable_in_the_file():
    assert escaped("layers.7.self_attn.out_proj") == "layers.7.self_attn.out_proj"
