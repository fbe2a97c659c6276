"""setfit: its quickstart: contrastive tuning of a sentence transformer, here a small BERT of random weights."""

from functools import partial

import transformers as hf
from benchmarks.wild.made import sentences, tokenizer
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression

FAULT = ("rate", "body_learning_rate=1 instead of 1e-3")


class Inner(hf.TrainerCallback):
    """What a callback is given by sentence-transformers' Trainer, not the model and arguments of setfit's."""

    def __init__(self, callback):
        for event in (name for name in dir(callback) if name.startswith("on_")):
            setattr(self, event, partial(self.tell, getattr(callback, event)))

    def tell(self, method, args, state, control, model=None, st_model=None, st_args=None, **given):
        return method(st_args or args, state, control, model=st_model or model, **given)


def train(run):
    words = tokenizer()
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    hf.BertModel(hf.BertConfig(vocab_size=len(words), max_position_embeddings=64, **size)).save_pretrained("bert")
    words.save_pretrained("bert")
    body = SentenceTransformer(modules=[Transformer("bert"), Pooling(32)], device="cpu")
    texts, labels = zip(*sentences(48), strict=True)
    rate = 1.0 if run.faulty else 1e-3
    arguments = TrainingArguments(
        "out",
        batch_size=16,
        max_steps=150,
        body_learning_rate=(rate, rate),
        logging_steps=5,
        report_to="none",
        save_strategy="no",
        show_progress_bar=False,
    )
    model = SetFitModel(model_body=body, model_head=LogisticRegression())
    rows = Dataset.from_dict({"text": list(texts), "label": list(labels)})
    Trainer(
        model=model, args=arguments, train_dataset=rows, callbacks=[Inner(each) for each in run.hugging_face]
    ).train()
