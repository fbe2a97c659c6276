"""Trains with Hugging Face's Trainer and DDP on two ranks: python hugging_face.py FOLDER CASE ...

CASE is one of `CASES`. Saves for each rank its verdicts, its warnings, and the error that DDP raised.
"""

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from hookboard import HealthMonitor
from hookboard.loops.hugging_face import for_transformers

CASES = ["healthy", "ddp looks for it", "a weight changes on one rank"]

SPOILED_AFTER = 3


class Classifier(BertForSequenceClassification):
    skips = False

    def forward(self, input_ids=None, labels=None, **given):
        found = super().forward(input_ids, labels=labels, **given)
        if not self.skips:
            found.loss = found.loss + 0.01 * self.side(found.logits).square().mean()
        return found


class Spoiling(TrainerCallback):
    """Multiplies the head's weights on rank 1."""

    def on_step_end(self, args, state, control, model, **others):
        if dist.get_rank() == 1 and state.global_step == SPOILED_AFTER:
            with torch.no_grad():
                model.classifier.weight.mul_(3.4)


def net(case):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    made = Classifier(BertConfig(vocab_size=50, max_position_embeddings=16, num_labels=3, **sizes))
    made.side = nn.Sequential(nn.Linear(3, 3))
    made.skips = case == "ddp looks for it"
    return made


def train(folder, case):
    tokens = torch.randint(50, (64, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row[0] % 3} for row in tokens]
    monitor, error = HealthMonitor(every_n_steps=1), ""
    spoiling = [Spoiling()] if case == "a weight changes on one rank" else []
    given = TrainingArguments(
        output_dir=folder,
        max_steps=6,
        per_device_train_batch_size=4,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=case == "ddp looks for it",
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            Trainer(net(case), given, train_dataset=data, callbacks=[for_transformers(monitor), *spoiling]).train()
        except RuntimeError as raised:
            error = str(raised)
    return list(monitor.verdicts), [str(one.message) for one in said], error


def main(folder, *cases):
    rank, size = (int(os.environ[name]) for name in ("LOCAL_RANK", "WORLD_SIZE"))
    os.environ["RANK"] = str(rank)  # which Accelerate asks for
    dist.init_process_group("gloo", rank=rank, world_size=size)
    for case in cases:
        torch.save(train(folder, case), Path(folder) / f"{case}.{rank}")


if __name__ == "__main__":
    main(*sys.argv[1:])
