"""Each page is short, its links lead somewhere, and the commands in it exist."""

import re

import pytest
from documents.pages import FENCE, PAGES, ROOT, anchors, blocks, commands, links, rows

import hookboard

MOST_WORDS = dict.fromkeys(PAGES, 1200) | {"README.md": 810}
del MOST_WORDS["docs/rules.md"]  # a section for each rule

ELSEWHERE = {"--logdir", "--samples_per_plugin", "--trainer", "--group", "--json"}
"""Options of TensorBoard, LightningCLI, pip, and of `hookboard`, whose own tests look for them."""

every_page = pytest.mark.parametrize("page", PAGES)


def words_by_hand(page: str) -> int:
    """The words that `python -m benchmarks.document` does not write; bars and dashes are none."""
    text = re.sub(r"<!-- (.*?): written by .*?<!-- end of \1 -->", "", PAGES[page], flags=re.DOTALL)
    text = re.sub(r"^- \*\*(Symptom|Reported as):\*\*.*$", "", text, flags=re.MULTILINE)
    return sum(any(character.isalnum() for character in word) for word in text.split())


def test_a_page_is_read_in_a_few_minutes_and_all_of_them_in_an_hour():
    assert {page: count for page, most in MOST_WORDS.items() if (count := len(PAGES[page].split())) > most} == {}
    pages = PAGES.keys() - {"README.md"}
    assert len(pages) <= 22
    assert sum(map(words_by_hand, pages)) <= 12_400


@every_page
def test_the_rows_of_a_table_have_as_many_cells_as_its_head_and_a_cell_is_read_at_a_glance(page):
    assert [cell for row in rows(page) for cell in row if len(cell) >= 200] == []
    lines = PAGES[page].splitlines()
    head = 0
    for number, line in enumerate(lines):
        if line.startswith("|--"):
            head = line.count("|")
            assert len(re.findall(r"(?<!\\)\|", lines[number - 1])) == head
        elif line.startswith("|") and lines[number - 1].startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == head, line


@every_page
def test_every_link_leads_to_a_file_and_a_heading(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def test_every_public_name_is_on_the_page_of_the_api():
    named = re.findall(r"^::: hookboard\.(?:.*\.)?(\w+)$", PAGES["docs/api.md"], re.MULTILINE)
    assert sorted(named) == hookboard.__all__


def test_every_picture_is_shown():
    shown = {link.rpartition("/")[2] for page in PAGES for link in links(page)}
    assert {path.name for path in (ROOT / "docs" / "images").iterdir()} <= shown


@every_page
def test_every_block_of_code_is_of_a_kind_that_is_tried(page):
    assert {language for language, _ in FENCE.findall(PAGES[page])} <= {"python", "yaml", "bash", "text"}


def test_a_clone_is_set_up_by_two_commands_of_which_ci_runs_the_second():
    *_, block = blocks("README.md", "bash")
    named = [line.partition("  #")[0].strip() for line in block.splitlines()]
    assert named == ["make demo", "make test"]
    assert "make test" in (ROOT / ".ci" / "run").read_text().splitlines()


@every_page
def test_every_target_script_module_and_test_that_is_named_is_there(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {c.split()[1] for c in commands(page) if c.startswith("make ")} <= targets
    for command in commands(page):
        for path in re.findall(r"(?:^|(?<=\s))(?:benchmarks|examples|tests|configs)/[\w/.]+", command):
            assert (ROOT / path).exists(), command
        for path in re.findall(r"^(?:\w+/)?test_\w+\.py$", command):
            assert (ROOT / "tests" / path).exists(), command
        for module in re.findall(r"python -m (benchmarks[\w.]*)", command):
            path = ROOT / module.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").exists(), command


@every_page
def test_every_option_of_a_script_is_there(page):
    for command in commands(page):
        script = re.search(r"(?:benchmarks|examples)/\w+\.py", command)
        places = ("benchmarks/*.py", "benchmarks/*/*.py", "examples/*.py", "src/hookboard/board/command.py")
        scripts = [ROOT / script[0]] if script else [path for place in places for path in ROOT.glob(place)]
        known = "".join(path.read_text() for path in scripts)
        for option in set(re.findall(r"(?:^|(?<=\s))--[a-z][\w-]*", command)) - ELSEWHERE:
            assert f'"{option}"' in known, command
