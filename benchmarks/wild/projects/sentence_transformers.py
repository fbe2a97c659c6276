"""sentence-transformers: its training overview: a small BERT with mean pooling, and static embeddings; made pairs."""

import random

import transformers as hf
from benchmarks.wild.made import HUGGING_FACE, TOPICS, sentence, tokenizer
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer

FAULT = ("rate", "learning_rate=1 instead of 1e-3 in the BERT")
VARIANTS = ("bert", "static")


def bert(words):
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    hf.BertModel(hf.BertConfig(vocab_size=len(words), max_position_embeddings=64, **size)).save_pretrained("bert")
    words.save_pretrained("bert")
    return [Transformer("bert"), Pooling(32)]


def train(run):
    words, drawn = tokenizer(), random.Random(0)
    static = run.variant == "static"
    model = SentenceTransformer(
        modules=[StaticEmbedding(words, embedding_dim=32)] if static else bert(words), device="cpu"
    )
    pairs = [[sentence(topic, drawn) for _ in range(2)] for topic in [*TOPICS] * 150]
    rows = Dataset.from_dict({"anchor": [one for one, _ in pairs], "positive": [other for _, other in pairs]})
    arguments = SentenceTransformerTrainingArguments(
        "out",
        learning_rate=1.0 if run.faulty else 0.2 if static else 1e-3,
        per_device_train_batch_size=8,
        num_train_epochs=2,
        warmup_steps=15,
        **HUGGING_FACE,
    )
    loss, callbacks = MultipleNegativesRankingLoss(model), run.hugging_face
    SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss, callbacks=callbacks).train()
