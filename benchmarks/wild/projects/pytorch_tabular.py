"""pytorch-tabular: its tutorial's TabularModel, of the category embedding, GANDALF and FT-Transformer: rate 1e-3."""

import pandas as pd
from pytorch_tabular import TabularModel, models
from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
from sklearn.datasets import load_breast_cancer, load_diabetes

FAULT = ("targets", "the target times 1e6, not normalized")
VARIANTS = ("CategoryEmbeddingModel", "GANDALF", "FTTransformer")
OPTIONS = {"FTTransformer": {"num_attn_blocks": 2, "num_heads": 2, "input_embed_dim": 16}}


def train(run):
    regression = run.variant == "CategoryEmbeddingModel"
    table = (load_diabetes if regression else load_breast_cancer)(as_frame=True).frame
    numbers = [column for column in table.columns if column != "target"]
    table["cat"] = pd.cut(table[numbers[0]], 4, labels=list("abcd")).astype(str)
    if regression:
        table["target"] = table["target"] * 1e6 if run.faulty else (table["target"] - 152) / 77
    config = getattr(models, f"{run.variant}Config")
    task = {"task": "regression" if regression else "classification", "learning_rate": 1e-3}
    quiet = {"progress_bar": "none", "checkpoints": None, "load_best": False, "early_stopping": None}
    epochs = {"batch_size": 32, "max_epochs": 10, "accelerator": "cpu", "seed": 0}
    model = TabularModel(
        data_config=DataConfig(["target"], continuous_cols=numbers, categorical_cols=["cat"], num_workers=0),
        model_config=config(**task, **OPTIONS.get(run.variant, {})),
        optimizer_config=OptimizerConfig(),
        trainer_config=TrainerConfig(trainer_kwargs={"enable_model_summary": False}, **quiet, **epochs),
        verbose=False,
    )
    model.fit(train=table, callbacks=run.callbacks, seed=0)
