"""Tokens at the edges of what counts as a target: an end that is never learnt, a beginning left out, and padding."""

import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from toys import fit_in_transformers

from hookboard import HealthMonitor
from hookboard.tracing.audit import audit

ROWS, LENGTH, TOKENS = 12, 20, 30
PAD, END, MARKER = 0, 1, 2


class Writer(nn.Module):
    """Predicts the next token; `labels` are moved inside, as libraries do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS))

    def forward(self, tokens, labels):
        labels = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        return {"loss": cross_entropy(self.net(tokens).view(-1, TOKENS), labels.reshape(-1))}


def chats(seed=0, end=END, rows=ROWS):
    """Return prompts that end with MARKER, answers, their end and PAD, in rows; and where answers begin."""
    drawn = torch.Generator().manual_seed(seed)
    tokens, begins = torch.full((rows, LENGTH), PAD), []
    for row in range(rows):
        prompt, answer = (int(torch.randint(low, 7, (), generator=drawn)) for low in (3, 2))
        told = torch.randint(3, TOKENS, (prompt + answer + 2,), generator=drawn)
        told[prompt], told[-1] = MARKER, end
        tokens[row, : len(told)] = told
        begins.append(prompt + 1)
    return tokens, torch.tensor(begins)


def masked(tokens, begins, late=0, keeps=1):
    """Labels that count from where answers begin, or `late` tokens later, with the first `keeps` END or PAD after."""
    places = torch.arange(LENGTH)
    behind = ((tokens <= END) & (places >= begins[:, None])).cumsum(1)
    counts = (places >= begins[:, None] + late) & (behind <= keeps)
    return tokens.masked_fill(~counts, -100)


def found_in(tokens, labels, rule="targets"):
    model = Writer()
    found = audit(model, {"tokens": tokens, "labels": labels}, lambda batch: model(**batch)["loss"])
    return [one for one in found if one.rule == rule]


def test_a_language_that_is_named_before_each_answer_is_left_alone():
    tokens, begins = chats()
    rows = torch.arange(ROWS)
    languages = TOKENS - 8 + rows % 8
    answers = tokens.masked_fill(tokens >= TOKENS - 8, 3)
    answers[rows, begins] = languages
    assert found_in(answers, masked(answers, begins, late=1)) == []


def test_the_end_of_a_grade_of_one_token_is_left_alone():
    tokens, begins = chats()
    counts = torch.arange(LENGTH) == begins[:, None]
    tokens = torch.where(torch.arange(LENGTH) == begins[:, None] + 1, END, tokens)
    assert found_in(tokens, tokens.masked_fill(~counts, -100)) == []


def test_a_note_names_the_loss_and_its_line():
    tokens, begins = chats()
    (note,) = found_in(tokens, masked(tokens, begins, keeps=0))
    assert re.search(r"\(targets of cross_entropy at test_supervision.py:\d+\)$", note.evidence)


@pytest.mark.parametrize("seed", range(10))
def test_answers_that_count_whole_are_left_alone(seed):
    tokens, begins = chats(seed)
    assert found_in(tokens, masked(tokens, begins)) == []


@pytest.mark.parametrize("end", [END, PAD])
def test_an_end_that_is_never_a_target_is_a_note(end):
    tokens, begins = chats(end=end)
    (note,) = found_in(tokens, masked(tokens, begins, keeps=0))
    assert note.severity == "note"
    assert re.match(rf"in all {ROWS} rows .* the next token is {end}, which is never a target", note.evidence)


def test_a_first_token_that_does_not_count_is_a_note():
    tokens, begins = chats()
    (note,) = found_in(tokens, masked(tokens, begins, late=1))
    assert re.match(
        rf"in all {ROWS} rows whose first tokens do not count, .* and follows token {MARKER} ", note.evidence
    )
    assert f"if token {MARKER} ends the prompt" in note.advice


def test_padding_that_counts_is_a_note_with_its_share_where_the_model_shifts_its_labels():
    tokens, _ = chats(end=PAD)
    (note,) = found_in(tokens, tokens, "padding")
    counted = tokens[:, 1:]
    lengths = (counted != PAD).int().mul(torch.arange(1, LENGTH)).amax(1)  # up to the last that is no padding
    share = (LENGTH - 1 - lengths).sum().item() / counted.numel()
    assert f"{share:.0%} of the targets of cross_entropy" in note.evidence
    assert note.advice.startswith(f"pass ignore_index={PAD}")


def test_texts_without_padding_or_masks_are_left_alone():
    tokens = torch.randint(TOKENS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    assert found_in(tokens, tokens) == []


def test_few_rows_are_not_judged():
    tokens, begins = chats(rows=7)
    assert found_in(tokens, masked(tokens, begins, keeps=0)) == []


def test_masked_tokens_that_are_to_be_guessed_are_left_alone():
    tokens, _ = chats()
    drawn = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < 0.2
    labels = torch.full_like(tokens, -100)
    labels[:, 1:] = torch.where(drawn, tokens, -100)[:, 1:]
    assert found_in(tokens.masked_fill(drawn, MARKER), labels) == []


@pytest.mark.trains
@pytest.mark.parametrize("keeps", [0, 1])
def test_an_end_that_is_never_a_target_is_told_under_hugging_face(keeps, tmp_path):
    tokens, begins = chats()
    monitor = HealthMonitor(every_n_steps=1)
    fit_in_transformers(
        tmp_path, Writer(), 2 * [{"tokens": tokens, "labels": masked(tokens, begins, keeps=keeps)}], monitor
    )
    assert [one.rule for one in monitor.verdicts if one.rule == "targets"] == ["targets"] * (1 - keeps)
