"""darts: its example notebooks of N-BEATS, the Transformer, the LSTM and the TFT, on a scaled monthly series."""

import numpy as np
import pandas as pd
from benchmarks.wild.made import QUIET
from darts import TimeSeries, models
from darts.dataprocessing.transformers import Scaler

FAULT = ("dropout", "dropout=0.99 in the Transformer")
VARIANTS = ("Transformer", "NBEATS", "RNN", "TFT")
OPTIONS = {
    "Transformer": {"d_model": 32, "nhead": 4, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 64},
    "NBEATS": {"num_blocks": 1, "num_stacks": 6, "num_layers": 2, "layer_widths": 64},
    "RNN": {"model": "LSTM", "training_length": 36, "hidden_dim": 25},
    "TFT": {"hidden_size": 16, "lstm_layers": 1, "num_attention_heads": 2, "add_relative_index": True},
}


def series():
    drawn, t = np.random.default_rng(0), np.arange(300)
    values = 200 + t * 0.8 + 40 * np.sin(2 * np.pi * t / 12) * (1 + t / 300) + drawn.normal(0, 5, 300)
    months = pd.date_range("1990-01-01", periods=300, freq="MS")
    return Scaler().fit_transform(TimeSeries.from_times_and_values(months, values.astype(np.float32)))


def train(run):
    options = {**OPTIONS[run.variant]}
    if run.variant != "RNN":
        options["output_chunk_length"] = 12
    if run.variant == "Transformer":
        options["dropout"] = 0.99 if run.faulty else 0.1
    options["pl_trainer_kwargs"] = {**QUIET, "callbacks": run.callbacks}
    model = getattr(models, f"{run.variant}Model")(input_chunk_length=24, n_epochs=12, random_state=0, **options)
    whole = series()
    model.fit(whole[:-48], val_series=whole[-72:])
