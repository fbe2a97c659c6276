"""Games, equations, graphs, tables and time, by torch's examples and papers."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from benchmarks.recipes import data
from benchmarks.recipes.generative import perceptron
from benchmarks.recipes.recipe import Plain, Training, loader, recipe, supervised
from benchmarks.recipes.vision import EXAMPLES
from torch import Tensor, nn, optim
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.utils.data import DataLoader, IterableDataset

# Games


class Pole:
    """A pole on a cart, with the constants of Gymnasium's CartPole-v1."""

    def __init__(self) -> None:
        self.state = (torch.rand(4) - 0.5) / 10

    def push(self, action: int) -> bool:
        """Move on by 0.02 seconds; returns whether the pole still stands."""
        _, speed, angle, turning = self.state.tolist()
        force = 10.0 if action else -10.0
        pull = (force + 0.05 * turning**2 * math.sin(angle)) / 1.1
        bend = (9.8 * math.sin(angle) - math.cos(angle) * pull) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        push = pull - 0.05 * bend * math.cos(angle) / 1.1
        self.state = self.state + 0.02 * torch.tensor([speed, push, turning, bend])
        return abs(float(self.state[0])) < 2.4 and abs(float(self.state[2])) < 0.2095


class Episodes(IterableDataset[Any]):
    """Games that are played with the policy as it is: states, actions and discounted returns, standardized."""

    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy

    def __iter__(self) -> Iterator[Any]:
        while True:
            pole, states, actions = Pole(), [], []
            stands = True
            while stands and len(states) < 200:
                states.append(pole.state)
                with torch.no_grad():
                    shares = self.policy(pole.state[None])[0].softmax(-1)[0]
                actions.append(int(torch.multinomial(shares, 1)))
                stands = pole.push(actions[-1])
            returns = [(1 - 0.99 ** (len(states) - at)) / 0.01 for at in range(len(states))]
            scaled = torch.tensor(returns)
            yield torch.stack(states), torch.tensor(actions), (scaled - scaled.mean()) / (scaled.std() + 1e-6)


class Policy(nn.Module):
    """The model of pytorch/examples reinforcement_learning: logits of actions, and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.affine = nn.Linear(4, 128)
        self.action, self.value = nn.Linear(128, 2), nn.Linear(128, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.relu(self.affine(states))
        return self.action(hidden), self.value(hidden).squeeze(-1)


@recipe("REINFORCE", EXAMPLES.format("reinforcement_learning/reinforce.py: Adam 1e-2, gamma 0.99"))
def reinforce() -> Training:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))

        def forward(self, states: Tensor) -> tuple[Tensor]:
            return (self.layers(states),)

    def loss(net: Any, batch: Any) -> Tensor:
        states, actions, returns = batch
        return -(net(states)[0].log_softmax(-1).gather(1, actions[:, None]).squeeze(1) * returns).sum()

    policy = Alone()
    games = DataLoader(Episodes(policy), batch_size=None)
    return Training(Plain(policy, loss, partial(optim.Adam, lr=1e-2)), games, 100, falls=False)


@recipe("actor and critic", EXAMPLES.format("reinforcement_learning/actor_critic.py: Adam 3e-2, smooth absolute error"))
def actor_critic() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        states, actions, returns = batch
        logits, values = net(states)
        chosen = logits.log_softmax(-1).gather(1, actions[:, None]).squeeze(1)
        return -(chosen * (returns - values.detach())).sum() + F.smooth_l1_loss(values, returns, reduction="sum")

    policy = Policy()
    games = DataLoader(Episodes(policy), batch_size=None)
    return Training(Plain(policy, loss, partial(optim.Adam, lr=3e-2)), games, 100, falls=False)


class Moves(IterableDataset[Any]):
    """Samples of what a half random player has seen: states, actions, rewards, what came then, whether it went on."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __iter__(self) -> Iterator[Any]:
        pole, memory = Pole(), []
        for count in range(10**9):
            before = pole.state
            is_random = torch.rand(()) < 0.05 + 0.85 * math.exp(-count / 1000)
            with torch.no_grad():
                action = int(torch.randint(2, ())) if is_random else int(self.net(before[None]).argmax())
            stands = pole.push(action)
            memory.append((before, torch.tensor(action), torch.tensor(1.0), pole.state, torch.tensor(float(stands))))
            pole = pole if stands else Pole()
            if count >= 128:
                drawn = torch.randint(len(memory), (128,)).tolist()
                yield tuple(torch.stack(each) for each in zip(*(memory[at] for at in drawn), strict=True))


class Following(Plain):
    """Moves a second net after the first by 0.005 at each step."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.target = perceptron(4, 128, 128, 2).requires_grad_(False)
        self.target.load_state_dict(self.net.state_dict())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        states, actions, rewards, after, on = batch
        with torch.no_grad():
            wanted = rewards + 0.99 * on * self.target(after).max(1).values
        return F.smooth_l1_loss(self.net(states).gather(1, actions[:, None]), wanted[:, None])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, 0.005)


@recipe(
    "DQN",
    "docs.pytorch.org tutorials/intermediate/reinforcement_q_learning: AdamW 3e-4, tau 0.005",
)
def dqn() -> Training:
    net = perceptron(4, 128, 128, 2)
    module = Following(net, None, partial(optim.AdamW, lr=3e-4, amsgrad=True))
    return Training(module, DataLoader(Moves(net), batch_size=None), 300, falls=False)


# Equations and fields


@recipe("PINN", "DeepXDE docs demos/pinn_forward/burgers: three hidden layers of 20 tanh, Glorot's weights, Adam 1e-3")
def pinn() -> Training:
    points = torch.rand(2560, 2) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
    start = torch.cat([torch.rand(2560, 1) * 2 - 1, torch.zeros(2560, 1)], 1)
    edge = torch.cat([torch.randint(2, (2560, 1)) * 2.0 - 1, torch.rand(2560, 1)], 1)

    def loss(net: Any, batch: Any) -> Tensor:
        inside, beginning, border = batch
        inside = inside.clone().requires_grad_()
        height = net(inside)
        (slopes,) = torch.autograd.grad(height.sum(), inside, create_graph=True)
        (curves,) = torch.autograd.grad(slopes[:, 0].sum(), inside, create_graph=True)
        rest = slopes[:, 1:] + height * slopes[:, :1] - 0.01 / math.pi * curves[:, :1]
        wave = -torch.sin(math.pi * beginning[:, :1])
        return rest.square().mean() + F.mse_loss(net(beginning), wave) + net(border).square().mean()

    net = perceptron(2, 20, 20, 20, 1, activation=nn.Tanh)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return Training(Plain(net, loss, partial(optim.Adam, lr=1e-3)), loader(points, start, edge, size=256), 300)


class Sine(nn.Module):
    def forward(self, given: Tensor) -> Tensor:
        return torch.sin(30 * given)


@recipe("SIREN", "vsitzmann/siren explore_siren.ipynb: sines of frequency 30, Adam 1e-4")
def siren() -> Training:
    picture = data.patches(48)[60].mean(0)
    line = torch.linspace(-1, 1, 48)
    places = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).view(-1, 2)
    net = perceptron(2, 64, 64, 64, 1, activation=Sine)
    for place, layer in enumerate(net):
        if isinstance(layer, nn.Linear):
            bound = 1 / 2 if place == 0 else math.sqrt(6 / layer.in_features) / 30
            nn.init.uniform_(layer.weight, -bound, bound)
    module = Plain(net, supervised(F.mse_loss), partial(optim.Adam, lr=1e-4))
    return Training(module, loader(places, 2 * picture.view(-1, 1) - 1, size=2304), 300)


# Graphs

NODES = 300


def neighbours() -> Tensor:
    """The digits' graph of their eight nearest, symmetric, with itself, normalized as by Kipf and Welling."""
    inputs = data.digits()[0].flatten(1)[:NODES]
    near = torch.cdist(inputs, inputs).topk(9, largest=False).indices
    joined = torch.zeros(NODES, NODES).scatter_(1, near, 1.0)
    joined = torch.maximum(joined, joined.t())
    root = joined.sum(1).rsqrt()
    return root[:, None] * joined * root


class GraphNet(nn.Module):
    """Two layers of Kipf and Welling's graph convolution."""

    def __init__(self, graph: Tensor) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 16), nn.Linear(16, 10)
        self.register_buffer("graph", graph)

    def forward(self, nodes: Tensor) -> Tensor:
        hidden = F.relu(self.graph @ self.first(F.dropout(nodes, 0.5, self.training)))
        return self.graph @ self.second(F.dropout(hidden, 0.5, self.training))  # type: ignore[no-any-return]  # a module gives Any


class Attention(nn.Module):
    """One layer of Velickovic's graph attention."""

    def __init__(self, inputs: int, outputs: int, graph: Tensor, heads: int) -> None:
        super().__init__()
        self.transform = nn.Linear(inputs, outputs * heads, bias=False)
        self.left, self.right = nn.Parameter(torch.empty(heads, outputs)), nn.Parameter(torch.empty(heads, outputs))
        for weight in (self.transform.weight, self.left, self.right):
            nn.init.xavier_uniform_(weight)
        self.register_buffer("apart", graph == 0)

    def forward(self, nodes: Tensor) -> Tensor:
        values = self.transform(nodes).view(len(nodes), *self.left.shape)
        scores = (values * self.left).sum(-1)[:, None] + (values * self.right).sum(-1)[None]
        shares = F.leaky_relu(scores, 0.2).masked_fill(self.apart[..., None], -math.inf).softmax(1)
        return torch.einsum("ijh,jho->iho", F.dropout(shares, 0.6, self.training), values).flatten(1)


def on_nodes(net: nn.Module, adam: Any) -> Training:
    """All nodes at once, the loss of every tenth."""
    images, labels = data.digits()
    inputs, labels = images.flatten(1)[:NODES], labels[:NODES]

    def loss(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0])[::10], batch[1][::10])

    whole = [(inputs, labels)]
    return Training(Plain(net, loss, adam), DataLoader(whole, batch_size=None), steps=200)  # type: ignore[arg-type]  # a list is a data set too


@recipe("GCN", EXAMPLES.format("gcn/main.py: Adam 1e-2, decay 5e-4, dropout 0.5"))
def gcn() -> Training:
    return on_nodes(GraphNet(neighbours()), partial(optim.Adam, lr=1e-2, weight_decay=5e-4))


@recipe("GAT", EXAMPLES.format("gat/main.py: Adam 5e-3, decay 5e-4, dropout 0.6"))
def gat() -> Training:
    graph = neighbours()
    net = nn.Sequential(
        nn.Dropout(0.6), Attention(64, 8, graph, 4), nn.ELU(), nn.Dropout(0.6), Attention(32, 10, graph, 1)
    )
    return on_nodes(net, partial(optim.Adam, lr=5e-3, weight_decay=5e-4))


# Tables and time


@recipe(
    "classifier of tables",
    "docs.pytorch.org tutorials/beginner/basics/quickstart_tutorial: SGD 1e-3",
)
def quickstart() -> Training:
    inputs, labels = data.digits()
    net = nn.Sequential(nn.Flatten(), perceptron(64, 512, 512, 10))
    module = Plain(net, supervised(F.cross_entropy), partial(optim.SGD, lr=1e-3))
    return Training(module, loader(inputs, labels, size=64), steps=1200)


@recipe("regression", "machinelearningmastery.com building-a-regression-model-in-pytorch: Adam 1e-4")
def regression() -> Training:
    net = perceptron(10, 24, 12, 6, 1)
    module = Plain(net, supervised(F.mse_loss), partial(optim.Adam, lr=1e-4))
    return Training(module, loader(*data.table("diabetes"), size=10), steps=1500)


@recipe("logistic regression", "scikit-learn's breast cancer, LBFGS as in scikit-learn's LogisticRegression")
def logistic() -> Training:
    inputs, labels = data.table("breast_cancer")
    whole = DataLoader([(inputs, labels.float()[:, None])], batch_size=None)  # type: ignore[arg-type]  # a list is a data set too
    module = Plain(
        nn.Linear(30, 1),
        supervised(F.binary_cross_entropy_with_logits),
        partial(optim.LBFGS, max_iter=4, line_search_fn="strong_wolfe"),
    )
    return Training(module, whole, steps=60)


@recipe("time sequence prediction", EXAMPLES.format("time_sequence_prediction/train.py: LBFGS 0.8, float64"))
def sines() -> Training:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51), nn.Linear(51, 1)

        def forward(self, given: Tensor) -> Tensor:
            one = two = None
            made = []
            for value in given.split(1, dim=1):
                one = self.lstm1(value, one)
                two = self.lstm2(one[0], two)
                made.append(self.linear(two[0]))
            return torch.cat(made, dim=1)

    starts = torch.randint(-80, 80, (32, 1))
    waves = torch.sin((torch.arange(40) + starts) / 20.0).double()
    whole = DataLoader([(waves[:, :-1], waves[:, 1:])], batch_size=None)  # type: ignore[arg-type]  # a list is a data set too
    module = Plain(Cells().double(), supervised(F.mse_loss), partial(optim.LBFGS, lr=0.8, max_iter=5))
    return Training(module, whole, steps=30)


class Factors(nn.Module):
    """Users and items as vectors, whose product is a rating."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, 20), nn.Embedding(items, 20)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.user(pairs[:, 0]) * self.item(pairs[:, 1])).sum(1)


@recipe("matrix factorization", "maciejkula/spotlight factorization/explicit.py: Adam 1e-2, squared error")
def factorization() -> Training:
    values = data.digits()[0].flatten(1)[:300]
    pairs = torch.cartesian_prod(torch.arange(300), torch.arange(64))
    module = Plain(Factors(300, 64), supervised(F.mse_loss), partial(optim.Adam, lr=1e-2))
    return Training(module, loader(pairs, values.flatten(), size=256), steps=400)
