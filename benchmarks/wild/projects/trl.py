"""trl: its quickstarts of SFT and DPO, here of a small Llama of random weights and made sentences."""

import copy
import random

import transformers as hf
from benchmarks.wild.made import HUGGING_FACE, TOPICS, sentence, sentences, tokenizer
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

FAULT = ("rate", "learning_rate=2 instead of 2e-3 in SFT")
VARIANTS = ("sft", "dpo")


def pairs():
    drawn = random.Random(0)
    starts = ["we saw a " + boat for boat in TOPICS["sea"].split()] * 40
    chosen, rejected = ([sentence(topic, drawn) for _ in starts] for topic in ("sea", "farm"))
    return Dataset.from_dict({"prompt": starts, "chosen": chosen, "rejected": rejected})


def train(run):
    words = tokenizer()
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=len(words), max_position_embeddings=64, **size, **tokens))
    options = {
        "learning_rate": 2.0 if run.faulty else 2e-3,
        "per_device_train_batch_size": 8,
        "max_steps": 120,
        "bf16": False,
        "gradient_checkpointing": False,
        **HUGGING_FACE,
    }
    common = {"processing_class": words, "callbacks": run.hugging_face}
    if run.variant == "sft":
        rows = Dataset.from_dict({"text": [text for text, _ in sentences(400)]})
        SFTTrainer(model, SFTConfig("out", max_length=32, **options), train_dataset=rows, **common).train()
    else:
        arguments = DPOConfig("out", max_length=48, **options)
        DPOTrainer(model, copy.deepcopy(model), arguments, train_dataset=pairs(), **common).train()
