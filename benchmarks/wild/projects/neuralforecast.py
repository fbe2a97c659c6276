"""neuralforecast: NHITS, LSTM and PatchTST by its quickstart, on the AirPassengers panel that it ships."""

from benchmarks.wild.made import QUIET
from neuralforecast import models
from neuralforecast.tsdataset import TimeSeriesDataset
from neuralforecast.utils import AirPassengersPanel

FAULT = ("targets", "passengers times 1e6 and scaler_type='identity'")
VARIANTS = ("LSTM", "NHITS", "PatchTST")
SMALL = {
    "NHITS": {"mlp_units": 3 * [[64, 64]], "max_steps": 150},
    "LSTM": {"encoder_hidden_size": 32, "decoder_hidden_size": 32, "max_steps": 80},
    "PatchTST": {"hidden_size": 16, "n_heads": 4, "encoder_layers": 2, "patch_len": 6, "stride": 3, "max_steps": 80},
}


def train(run):
    panel = AirPassengersPanel[["unique_id", "ds", "y"]].copy()
    if run.faulty:
        panel["y"] *= 1e6
    model = getattr(models, run.variant)(
        h=12,
        input_size=24,
        scaler_type="identity" if run.faulty else "robust",
        windows_batch_size=64,
        val_check_steps=50,
        callbacks=run.callbacks,
        **SMALL[run.variant],
        **QUIET,
    )
    dataset, *_ = TimeSeriesDataset.from_df(panel)
    model.fit(dataset, val_size=12)  # NeuralForecast would train a copy, with copies of the callbacks
