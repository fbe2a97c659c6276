"""e3nn: its tetris example (8 shapes, every rotation is a new one: Adam 0.01), with its SimpleNetwork of 2021-06."""

import torch
from e3nn import o3
from e3nn.nn.models.v2106.gate_points_networks import SimpleNetwork

FAULT = ("rate", "lr=10 instead of 0.01")
SHAPES = [
    [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 1, 0)],
    [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, -1, 0)],
    [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)],
    [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)],
    [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)],
    [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)],
    [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 1)],
    [(0, 0, 0), (1, 0, 0), (1, 1, 0), (2, 1, 0)],
]


def train(run):
    shapes, target = torch.tensor(SHAPES, dtype=torch.float32), torch.eye(8)
    sizes = {"max_radius": 1.1, "num_neighbors": 1.5, "num_nodes": 4, "mul": 8, "layers": 2, "lmax": 2}
    model = SimpleNetwork("0e", "0o + 7x0e", **sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=10.0 if run.faulty else 0.01)
    batch = torch.arange(8).repeat_interleave(4)
    target = torch.cat(
        [torch.tensor([1.0, -1.0] + [0.0] * 6)[:, None], target[:, :1] + target[:, 1:2], target[:, 2:]], 1
    )
    rest = {"x": torch.ones(32, 1), "batch": batch}
    drawn = (torch.einsum("zij,zaj->zai", o3.rand_matrix(8), shapes).reshape(-1, 3) for _ in range(150))
    batches = ({"pos": points, **rest} for points in drawn)
    run.descend(model, optimizer, batches, lambda data: (model(data) - target).pow(2).sum())
