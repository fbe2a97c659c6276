"""careamics: its Noise2Void, smaller, on made noisy pictures: create_n2v_configuration, CAREamist, train."""

import numpy as np
from careamics import CAREamist
from careamics.config.configuration_factory import create_n2v_configuration

FAULT = ("rate", "lr=1 instead of 1e-3")


def train(run):
    drawn, (y, x) = np.random.default_rng(0), np.mgrid[:128, :128]
    clean = [128 + 60 * np.sin(x / (3 + i)) * np.cos(y / (4 + i)) for i in range(3)]
    noisy = np.stack(clean + drawn.normal(0, 25, (3, 128, 128))).astype(np.float32)
    sizes = {"patch_size": [32, 32], "batch_size": 8, "num_epochs": 15}
    config = create_n2v_configuration(
        experiment_name="n2v",
        data_type="array",
        axes="SYX",
        model_params={"num_channels_init": 16, "depth": 2},
        dataloader_params={"num_workers": 0},
        **sizes,
    )
    config.algorithm_config.optimizer.parameters["lr"] = 1.0 if run.faulty else 1e-3
    CAREamist(config, work_dir="work", callbacks=run.callbacks).train(train_source=noisy, val_source=noisy[:1])
