"""trl: its quickstarts of SFT and DPO, here of a small Llama of random weights and made sentences."""

import random

import transformers as hf
from benchmarks.wild.made import TOPICS, sentence, sentences, tokenizer
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

FAULT = ("rate", "learning_rate=2 instead of 2e-3 in SFT")
VARIANTS = ("sft", "dpo")


def pairs():
    drawn = random.Random(0)
    rows = [
        ("we saw a " + TOPICS["sea"].split()[i % 10], sentence("sea", drawn), sentence("farm", drawn))
        for i in range(400)
    ]
    return Dataset.from_dict(
        dict(zip(("prompt", "chosen", "rejected"), map(list, zip(*rows, strict=True)), strict=True))
    )


def train(run):
    words = tokenizer()
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=len(words), max_position_embeddings=64, **size, **tokens))
    options = {
        "learning_rate": 2.0 if run.faulty else 2e-3,
        "per_device_train_batch_size": 8,
        "max_steps": 120,
        "logging_steps": 5,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    common = {"processing_class": words, "callbacks": run.hugging_face}
    if run.variant == "sft":
        rows = Dataset.from_dict({"text": [text for text, _ in sentences(400)]})
        SFTTrainer(model, SFTConfig("out", max_length=32, **options), train_dataset=rows, **common).train()
    else:
        DPOTrainer(model, args=DPOConfig("out", max_length=48, **options), train_dataset=pairs(), **common).train()
