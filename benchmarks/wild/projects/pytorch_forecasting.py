"""pytorch-forecasting: its tutorials of the TFT (rate 0.03) and of N-BEATS (0.03), on its generate_ar_data."""

import lightning.pytorch as pl
from benchmarks.wild.made import QUIET
from pytorch_forecasting import NBeats, TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data import GroupNormalizer, NaNLabelEncoder
from pytorch_forecasting.data.examples import generate_ar_data
from pytorch_forecasting.metrics import QuantileLoss

FAULT = ("rate", "learning_rate=30 instead of 0.03 in the TFT")
VARIANTS = ("TFT", "NBeats")
AR = {"seasonality": 10.0, "timesteps": 120, "n_series": 30, "seed": 42}


def train(run):
    table = generate_ar_data(**AR).astype({"value": float, "series": str})
    cut = table["time_idx"].max() - 10
    columns = {
        "time_idx": "time_idx",
        "target": "value",
        "group_ids": ["series"],
        "time_varying_unknown_reals": ["value"],
    }
    if run.variant == "TFT":
        columns |= {"static_categoricals": ["series"], "time_varying_known_reals": ["time_idx"]}
        columns["target_normalizer"] = GroupNormalizer(groups=["series"])
    columns["categorical_encoders"] = {"series": NaNLabelEncoder().fit(table.series)}
    lengths = {"max_encoder_length": 30, "max_prediction_length": 10}
    training = TimeSeriesDataSet(table[table.time_idx <= cut], **columns, **lengths)
    validation = TimeSeriesDataSet.from_dataset(training, table, min_prediction_idx=cut + 1)
    loaders = [
        rows.to_dataloader(train=rows is training, batch_size=64, num_workers=0) for rows in (training, validation)
    ]
    if run.variant == "TFT":
        sizes = {"hidden_size": 16, "attention_head_size": 1, "dropout": 0.1, "hidden_continuous_size": 8}
        options = {"loss": QuantileLoss(), "log_interval": -1, "reduce_on_plateau_patience": 4, **sizes}
        rate = 30.0 if run.faulty else 0.03
        model = TemporalFusionTransformer.from_dataset(training, learning_rate=rate, optimizer="adam", **options)
    else:
        options = {"widths": [32, 128], "backcast_loss_ratio": 0.1, "log_interval": -1}
        model = NBeats.from_dataset(training, learning_rate=3e-2, weight_decay=1e-2, **options)
    pl.Trainer(max_epochs=4, limit_train_batches=25, gradient_clip_val=0.1, callbacks=run.callbacks, **QUIET).fit(
        model, *loaders
    )
