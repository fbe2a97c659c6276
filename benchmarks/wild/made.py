"""Data that several projects are trained on, and what their Trainers have in common."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import DataLoader

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Options of a Lightning Trainer."""

HUGGING_FACE: dict[str, Any] = {
    "logging_steps": 5,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
    "use_cpu": True,
}
"""Arguments of Hugging Face's Trainer."""

TOPICS = {
    "sea": "boat wave sail harbor fish tide anchor reef storm island",
    "farm": "cow barn wheat tractor field hay fence goat seed plough",
    "city": "tram street tower office market bridge crowd square taxi shop",
    "music": "violin song choir drum melody concert piano rhythm opera band",
}

FRAMES = ("the {} is near the {}", "we saw a {} and a {}", "this {} has no {}", "a {} can not be a {}")

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def sentence(topic: str, drawn: random.Random) -> str:
    """Return a made sentence about one of `TOPICS`."""
    return " and ".join(drawn.choice(FRAMES).format(*drawn.sample(TOPICS[topic].split(), 2)) for _ in range(2))


def sentences(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Return made sentences, each with the number of its topic."""
    drawn = random.Random(seed)
    numbers = [drawn.randrange(len(TOPICS)) for _ in range(count)]
    return [(sentence(list(TOPICS)[number], drawn), number) for number in numbers]


def tokenizer() -> Any:
    """Return a tokenizer of the words of made sentences, for transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *sorted({word for text in (*TOPICS.values(), *FRAMES, "and") for word in text.split()} - {"{}"})]
    whole = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    whole.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=whole, eos_token="[SEP]", **names)


@contextmanager
def each_batch(run: Any, find: Any) -> Iterator[None]:
    """Watch a `fit` that has no callbacks: a batch of a DataLoader is a step, unless it is read under `no_grad`.

    Args:
        run: what the script trains with.
        find: returns the model and its optimizer, once the first batch is there.
    """
    iterate, backward, opened = DataLoader.__iter__, torch.Tensor.backward, ExitStack()
    steps: list[Any] = []
    seen: list[Any] = []

    def batches(loader: Any) -> Iterator[Any]:
        for batch in iterate(loader):
            if not torch.is_grad_enabled():
                yield batch
                continue
            if not steps:
                steps.append(opened.enter_context(run.loop(*find())))
            seen.clear()
            with steps[0].step(batch):
                yield batch

    def noted(loss: Any, *given: Any, **named: Any) -> None:
        if not seen:  # later ones of a step are the monitor's
            run.loss(loss)
            seen.append(loss)
        backward(loss, *given, **named)

    with opened, patch.object(DataLoader, "__iter__", batches), patch.object(torch.Tensor, "backward", noted):
        yield
