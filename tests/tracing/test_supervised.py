"""Tokens of which only some are targets: what is said if none counts, or one alone."""

import re

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy
from toys import fit_in_transformers

from hookboard import HealthMonitor
from hookboard.tracing.step import audit

ROWS, LENGTH, CLASSES = 4, 16, 11
TOKENS = torch.randint(CLASSES, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))


class Tagger(LightningModule):
    """A loss for each token, whose labels the step moves and masks as libraries do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Embedding(CLASSES, 8), nn.Linear(8, CLASSES))

    def training_step(self, batch):
        tokens, labels = batch
        labels = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        return cross_entropy(self.net(tokens).view(-1, CLASSES), labels.reshape(-1))


def found_in(labels):
    return [(one.severity, one.evidence) for one in audit(Tagger(), (TOKENS, labels)) if one.rule == "targets"]


def with_answers(count, value=None):
    """Labels of which `count` count once they are shifted: the last ones of all rows together."""
    labels = TOKENS.clone() if value is None else torch.full_like(TOKENS, value)
    flat = labels[:, 1:].reshape(-1)
    flat[: flat.numel() - count] = -100
    labels[:, 1:] = flat.view(ROWS, LENGTH - 1)
    return labels


def test_that_no_target_counts_is_an_alarm():
    ((severity, evidence),) = found_in(with_answers(0))
    total, ignored = TOKENS.numel(), -100
    assert severity == "alarm"
    assert f"all {total} targets of cross_entropy at" in evidence
    assert evidence.endswith(f"are {ignored}, its ignore_index, so none of them counts")


@pytest.mark.parametrize(("count", "severity"), [(32, "alarm"), (31, "note")])
def test_that_one_token_alone_counts_is_an_alarm_from_32_targets_on(count, severity):
    ((found, evidence),) = found_in(with_answers(count, 7))
    assert found == severity
    assert re.search(rf"all {count} targets that count \(of 64\) at .* are 7, one of 11 classes", evidence)


@pytest.mark.parametrize("count", [1, 40])
def test_nothing_is_said_of_answers_that_differ_or_are_few(count):
    assert found_in(with_answers(count)) == []


def llama():
    """A language model of transformers, which shifts labels by itself."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=CLASSES, **sizes))


def shifted_before(tokens):
    return nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)


LABELS = {
    "all masked": (with_answers(0), "all 64 targets of cross_entropy"),
    "shifted twice": (shifted_before(TOKENS), "are the tokens two positions later"),
    "answers alone": (with_answers(40), ""),
    "all tokens": (TOKENS, ""),
}


@pytest.mark.trains
@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_judged_as_a_model_of_transformers_shifts_them(kind, tmp_path):
    (labels, evidence), monitor = LABELS[kind], HealthMonitor(every_n_steps=1)
    data = 3 * [{"input_ids": TOKENS, "labels": labels}]
    fit_in_transformers(tmp_path, llama(), data, monitor, learning_rate=1e-3)
    found = [one.evidence for one in monitor.verdicts if one.rule == "targets" and one.severity == "alarm"]
    assert len(found) == bool(evidence)
    assert all(evidence in one for one in found)
