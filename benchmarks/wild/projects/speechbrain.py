"""speechbrain: a Brain as in its recipe of speaker identification: Fbank, Xvector, Classifier, nll_loss, Adam 1e-3."""

import speechbrain as sb
import torch
from speechbrain.lobes.features import Fbank
from speechbrain.lobes.models.Xvector import Classifier, Xvector
from speechbrain.processing.features import InputNormalization

FAULT = ("rate", "lr=1 instead of 1e-3")


class Speakers(sb.Brain):
    def compute_forward(self, batch, stage):
        lens = torch.ones(len(batch[0]))
        feats = self.modules.mean_var_norm(self.modules.compute_features(batch[0]), lens)
        return self.modules.classifier(self.modules.embedding_model(feats, lens))

    def compute_objectives(self, predictions, batch, stage):
        return sb.nnet.losses.nll_loss(predictions, batch[1])

    def fit_batch(self, batch):
        with self.steps.step(batch):
            loss = super().fit_batch(batch)
        self.seen(loss)
        return loss


def train(run):
    y, t = torch.randint(6, (240, 1)), torch.arange(6400) / 16000
    pitch = 120 + 40 * y + 10 * torch.randn(240, 1)
    x = sum(torch.sin(6.283 * pitch * k * t) / k for k in range(1, 6)) + 0.3 * torch.randn(240, 6400)
    blocks = {"tdnn_blocks": 3, "tdnn_channels": [32, 32, 64]}
    kernels = {"tdnn_kernel_sizes": [5, 3, 1], "tdnn_dilations": [1, 2, 1]}
    modules = {
        "compute_features": Fbank(n_mels=24),
        "mean_var_norm": InputNormalization(norm_type="sentence", std_norm=False),
        "embedding_model": Xvector(in_channels=24, lin_neurons=32, **blocks, **kernels),
        "classifier": Classifier(input_shape=[None, None, 32], lin_blocks=1, lin_neurons=32, out_neurons=6),
    }
    rate = 1.0 if run.faulty else 1e-3
    brain = Speakers(modules, lambda weights: torch.optim.Adam(weights, rate), run_opts={"device": "cpu"})
    brain.seen = run.loss
    brain.init_optimizers()
    brain.init_optimizers = lambda: None  # fit calls it again
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
    with run.loop(brain.modules, brain.optimizer) as brain.steps:
        brain.fit(range(12), rows, progressbar=False)
