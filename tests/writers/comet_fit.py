"""Trains with a CometLogger whose experiment is offline: `python comet_fit.py FOLDER`.

A process of its own: the package leaves sockets and threads behind.
"""

import sys

import comet_ml
from lightning.pytorch.loggers import CometLogger
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, GradientLogger, HealthMonitor

if __name__ == "__main__":
    folder = sys.argv[1]
    logger = CometLogger(online=False, offline_directory=folder)
    # Lightning switches an offline experiment off.
    logger._experiment = comet_ml.OfflineExperiment(offline_directory=folder, display_summary_level=0)
    net = mlp()
    net[0].bias.data.fill_(-100.0)
    mine = [
        ActivationLogger("net.0", every_n_steps=1, histogram=True),
        GradientLogger("net.0", every_n_steps=1, histogram=True),
        HealthMonitor(every_n_steps=1, report=True),
    ]
    fit(None, Toy(net), batches(*[4] * 8), *mine, logger=[logger])
    print(mine[0].readings[0].moments.mean)
    logger.experiment.end()
