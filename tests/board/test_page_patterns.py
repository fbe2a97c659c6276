"""The page filters its rows by the patterns and types that the callbacks take: it finds the same layers."""

from urllib.parse import quote

import pytest
import torch
from torch import nn

from hookboard.board.plugin import STATIC
from hookboard.model.selection import select

pytestmark = pytest.mark.browser


class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(1, 1)


KINDS = (lambda: nn.Linear(1, 1), lambda: nn.LayerNorm(1), lambda: nn.Conv2d(1, 1, 1), Scaled)
NAMES = [f"encoder.layers.{i}.{part}" for i in (0, 1, 2, 10) for part in ("linear1", "linear2", "norm", "norm.gain")]
NAMES += ["head", "head2", "größe", "x_1", "a+b", "a-b", "[c]", "d{2}", "re:d", "!e", "aa", "aaa", "HEAD"]

WRITTEN = r"""
** * *.* head head* *head* **.norm **norm **.norm.** encoder.** encoder.*.1.* encoder.layers.1* **.1.** **.*.norm *.**
**.** *** **..** hea . .. encoder. a+b a.b [c] d{2} re:re:d re:!e gr*e größe GRÖSSE __proto__ *_*
re:.* re: re:head re:hea re:head2? re:.*[.](norm|gain) re:.*\.norm re:encoder\.layers\.\d+\.\w+ re:. re:..
re:\d re:[\d] re:[^\d]+ re:gr..e re:.*\bnorm\b.* re:(?P<x>a)(?P=x)+ re:(a)\1 re:(?i)head re:(?s).* re:(?ims)Head2
re:a{2} re:a{2,} re:a{1,2} re:d\{2} re:d\{2\} re:a[-+]b re:a[\-\+]b re:\!e re:x_1 re:\[c\] re:^head$ re:(?=h)head
re:(?!h).* re:head(?<!x) re:(?:a|b)+ re:a|head re:a\x61 re:a??a re:a+? re:( re:a)(b re:) re:[ re:* re:a** re:[b-a]
"""
PATTERNS = [
    *WRITTEN.split(),
    12 * "*" + "x",
    30 * "*a" + "b",
    12 * "**.*." + "**x",
    "re:" + 900 * "(",
]

TYPES = ["Linear", "LayerNorm", "Conv2d", "_ConvNd", "Scaled", "torch.nn.Linear", "torch.nn.modules.linear.Linear"]
TYPES += [f"{__name__}.Scaled", "linear", "Lin", "Line*", "", "torch.nn.modules.conv.Linear"]
"""Not `Module`, which is no type of a record, as every layer is one."""


@pytest.fixture(scope="module")
def model():
    """A model of which every module, itself included, owns a parameter, so that patterns select any of them."""
    root = nn.Module()
    for i, name in enumerate(NAMES):
        *above, own = name.split(".")
        parent = root
        for part in above:
            if part not in parent._modules:
                parent.add_module(part, nn.Sequential())
            parent = parent._modules[part]
        parent.add_module(own, KINDS[i % len(KINDS)]())
    for module in root.modules():
        module.register_parameter("own", nn.Parameter(torch.zeros(1)))
    return root


@pytest.fixture(scope="module")
def filtered(chromium):
    """Gives for each pair of texts, as in the two fields, the names that the page chooses (or None) and its errors."""
    page = chromium.new_page()
    address = "data:text/javascript," + quote((STATIC / "patterns.js").read_text(encoding="utf-8"))
    ask = """async ([address, layers, given]) => {
        const { filterOf } = await import(address);
        return given.map(([modules, types]) => filterOf(layers, { modules, types }));
    }"""

    def ask_page(types_of, given):
        layers = [
            {"name": name, "type": full[0].rpartition(".")[2] if full else "", "types": full}
            for name, full in types_of.items()
        ]
        return page.evaluate(ask, [address, layers, given])

    yield ask_page
    page.close()


def chosen_by_callbacks(model, modules, types):
    """The names, or the text of the error."""
    try:
        return list(select(model, modules or None, types or None, owning="parameters"))
    except ValueError as error:
        return [] if "selects no module" in str(error) else str(error)


def test_the_page_and_the_callbacks_select_the_same_layers(model, filtered):
    types_of = {}
    for name, module in select(model, "**", owning="parameters").items():
        kinds = type(module).__mro__[:-2]  # without nn.Module and object
        types_of[name] = [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]
    given = [[pattern] for pattern in PATTERNS] + [[f"!{pattern}"] for pattern in PATTERNS]
    given += [["**", f"!{one}", f"!{other}"] for one, other in zip(PATTERNS, PATTERNS[7:], strict=False)]
    cases = [(patterns, []) for patterns in given]
    cases += [([], [kind]) for kind in TYPES if kind] + [(["**"], ["Linear", f"!{kind}"]) for kind in TYPES]
    cases += [(["**.norm", "!**.1.**"], ["LayerNorm"]), (["head"], ["!Linear", "!LayerNorm"]), (["!head"], ["Linear"])]
    answers = filtered(types_of, [[" ".join(modules), " ".join(types)] for modules, types in cases])
    found = 0
    for (modules, types), answer in zip(cases, answers, strict=True):
        expected = chosen_by_callbacks(model, modules, types)
        if isinstance(expected, str):
            assert answer["filter"] is None, (modules, types)
            error = answer["errors"]["modules"] + answer["errors"]["types"]
            assert error
            if len(modules) == 1:  # of several, the one or the other may be named first
                words = "not a regular expression"
                assert (words in error) == (words in expected), (modules, error)
        else:
            assert answer["filter"] == expected, (modules, types, answer["errors"])
            found += 0 < len(expected) < len(NAMES)
    assert found > 50


LAYERS = {"net.stem": ["torch.nn.modules.conv.Conv2d"], "net.9": ["torch.nn.modules.linear.Linear"], "head": []}

WRONG = [
    (LAYERS, "nett.*", "", "layers: the pattern 'nett.*' matches no layer's whole name; the closest are 'net"),
    (LAYERS, "et", "", "layers: the pattern 'et' matches no layer's whole name, '**et**' matches 2"),
    (LAYERS, "zzz", "", "matches no layer's whole name. Valid: net.stem, net.9, head."),
    (LAYERS, "re:(", "", "layers: 're:(' is not a regular expression: Unterminated group."),
    (LAYERS, "", "Liner", "types: no layer is a 'Liner'; the closest are 'Linear'. Valid: Conv2d, Linear."),
    ({"net": []}, "", "Linear", "types: the run has no record of its layers' types, so 'Linear' cannot"),
]


def test_a_wrong_pattern_is_answered_by_a_sentence_and_empty_fields_filter_nothing(filtered):
    for layers, modules, types, text in WRONG:
        (answer,) = filtered(layers, [[modules, types]])
        assert answer["filter"] is None
        assert text in answer["errors"]["modules" if modules else "types"]
    assert filtered(LAYERS, [["", ""]]) == [{"filter": None, "errors": {"modules": "", "types": ""}}]
