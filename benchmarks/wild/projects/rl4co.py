"""rl4co: its quickstart: POMO, and an attention model with a rollout baseline, on tours of 10 cities."""

from benchmarks.wild.made import QUIET
from rl4co.envs import TSPEnv
from rl4co.models import POMO, AttentionModel, AttentionModelPolicy
from rl4co.utils import RL4COTrainer

FAULT = ("rate", "lr=1 instead of 1e-3 in POMO")
VARIANTS = ("POMO", "AttentionModel")
FALLS = False


def train(run):
    env = TSPEnv(generator_params={"num_loc": 10})
    sizes = {"embed_dim": 32, "num_encoder_layers": 2, "num_heads": 4, "feedforward_hidden": 64}
    policy = AttentionModelPolicy(env_name=env.name, **sizes)
    options = {"batch_size": 32, "train_data_size": 32 * 30, "val_data_size": 64, "test_data_size": 64}
    options["optimizer_kwargs"] = {"lr": 1.0 if run.faulty else 1e-3}
    kind = POMO(env, policy=policy, **options) if run.variant == "POMO" else None
    model = kind or AttentionModel(env, policy=policy, baseline="rollout", **options)
    quiet = {**QUIET, "logger": None}
    RL4COTrainer(max_epochs=2, devices=1, precision="32-true", callbacks=run.callbacks, **quiet).fit(model)
