"""torchrl: DQN of the cart pole as in its getting-started tutorial: Adam 0.02, SoftUpdate 0.99."""

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueModule
from torchrl.objectives import DQNLoss, SoftUpdate

FAULT = ("rate", "lr=20 instead of 0.02")
FALLS = False


def train(run):
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    env.set_seed(0)
    value = TensorDictModule(
        MLP(out_features=2, num_cells=[64, 64]), in_keys=["observation"], out_keys=["action_value"]
    )
    policy = TensorDictSequential(value, QValueModule(spec=env.action_spec))
    policy(env.reset())
    explore = EGreedyModule(env.action_spec, annealing_num_steps=2000, eps_init=0.5)
    collector = Collector(
        env, TensorDictSequential(policy, explore), frames_per_batch=100, total_frames=2500, init_random_frames=500
    )
    buffer, loss_of = ReplayBuffer(storage=LazyTensorStorage(10_000)), DQNLoss(policy, action_space=env.action_spec)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=20.0 if run.faulty else 0.02)
    updater = SoftUpdate(loss_of, eps=0.99)
    with run.loop(loss_of, optimizer) as steps:
        for i, frames in enumerate(collector):
            buffer.extend(frames)
            for _ in range(10 if i >= 5 else 0):
                sample = buffer.sample(128)
                with steps.step(sample):
                    loss = loss_of(sample)["loss"]
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    updater.step()
                run.loss(loss)
            explore.step(frames.numel())
    collector.shutdown()
