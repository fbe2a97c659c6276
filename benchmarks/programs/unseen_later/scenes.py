"""Boxes, graphs and differential equations."""

import math
from typing import Any

import torch
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.common import mlp, r2
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name

Pair = tuple[Tensor, Tensor]
SIZE = 16


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """The intersection over union of boxes that are given by their corners."""
    shared = (torch.min(first[..., 2:], second[..., 2:]) - torch.max(first[..., :2], second[..., :2])).clamp(min=0)
    areas = [(boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1) for boxes in (first, second)]
    return shared.prod(-1) / (areas[0] + areas[1] - shared.prod(-1) + 1e-6)


def corners(middles: Tensor, sizes: Tensor) -> Tensor:
    return torch.cat([middles - sizes / 2, middles + sizes / 2], -1)


@case(
    "yolo_v1_pytorch 1",
    ISSUE.format("motokimura/yolo_v1_pytorch", 1),
    kind="detection",
    fault="The corners of the two boxes of a cell are computed from pred[:, 2] in place of pred[:, :2].",
    fix="pred[:, :2].",
    port="One bright box in a picture of 16x16, which is the only cell, in place of photographs.",
    causes="Overlaps are computed from widths in place of positions, so that confidences and the choice of the box are"
    " wrong.",
    words=("index", "overlap", "target", "confidence", "noise", "plateau"),
)
class WidthsForPlaces(Learner):
    rate = 0.002
    steps = 600

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = nn.Sequential(nn.Flatten(), mlp(SIZE * SIZE, 128, 64, 10), nn.Sigmoid())

    def batch(self) -> Pair:
        sizes = 0.2 + 0.4 * torch.rand(64, 2)
        middles = sizes / 2 + torch.rand(64, 2) * (1 - sizes)
        near = (((torch.arange(SIZE) + 0.5) / SIZE - middles.unsqueeze(2)).abs() < sizes.unsqueeze(2) / 2).float()
        pictures = near[:, 1].unsqueeze(2) * near[:, 0].unsqueeze(1)
        return pictures + 0.1 * torch.randn_like(pictures), torch.cat([middles, sizes], 1)

    def xyxy(self, boxes: Tensor) -> Tensor:
        """The corners of boxes (samples, 2, 4)."""
        places = boxes[..., :2] if self.fixed else boxes[:, :, 2].unsqueeze(1).expand(-1, 2, -1)  # fault
        return corners(places, boxes[..., 2:])

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        pictures, boxes = batch
        found = self.net(pictures).view(-1, 2, 5)
        with torch.no_grad():
            overlaps = overlap(self.xyxy(found[..., :4]), self.xyxy(boxes.unsqueeze(1).expand(-1, 2, -1)))
        overlaps, best = overlaps.max(1)
        rows = torch.arange(len(boxes))
        chosen, other = found[rows, best], found[rows, 1 - best]
        sizes = F.mse_loss(chosen[:, 2:4].sqrt(), boxes[:, 2:].sqrt())
        sure = F.mse_loss(chosen[:, 4], overlaps) + 0.5 * other[:, 4].square().mean()
        return 5 * (F.mse_loss(chosen[:, :2], boxes[:, :2]) + sizes) + sure

    def score(self) -> float:
        """The mean overlap of the box that is surest, less how far its confidence is from it."""
        pictures, boxes = self.batch()
        found = self.net(pictures).view(-1, 2, 5)
        chosen = found[torch.arange(len(boxes)), found[..., 4].argmax(1)]
        truth = overlap(corners(chosen[:, :2], chosen[:, 2:4]), corners(boxes[:, :2], boxes[:, 2:]))
        return (truth - (truth - chosen[:, 4]).abs()).mean().item()


@case(
    "YOLO 105",
    ISSUE.format("MultimediaTechLab/YOLO", 105),
    kind="detection",
    fault="Mixup multiplies the rows of boxes, with their classes and places, by the shares of their pictures.",
    fix="The rows of both pictures are joined as they are.",
    port="Spots of three kinds in pictures of 16x16, in 4x4 cells, without sizes; each picture is mixed.",
    causes="The targets of mixed pictures have wrong classes and places.",
    words=("target", "label", "class", "scale", "mismatch", "noise"),
)
class ScaledBoxes(Learner):
    rate = 0.005

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(32, 4, 1),
        )  # fmt: skip

    def drawn(self) -> Pair:
        """A picture with two spots, and their rows: the kind, from 1 to 3, and the middle in pixels."""
        rows, picture = torch.zeros(2, 3), 0.05 * torch.randn(1, SIZE, SIZE)
        for row in rows:
            kind, x, y = torch.randint(1, 4, ()), *torch.randint(1, SIZE - 1, (2,))
            row.copy_(torch.stack([kind, x, y]))
            picture[0, y, x - 1 : x + 2] += float(kind != 2)
            picture[0, y - 1 : y + 2, x] += float(kind != 1)
        return picture, rows

    def targets(self, rows: Tensor) -> Tensor:
        """The kind of each of 4x4 cells, 0 if there is none."""
        cells = torch.zeros(4, 4, dtype=torch.long)
        kinds, places = rows[:, 0].long(), (rows[:, 1:] / 4).long()
        cells[places[:, 1], places[:, 0]] = kinds
        return cells

    def mixed(self) -> Pair:
        (first, rows), (second, others) = self.drawn(), self.drawn()
        share = torch.distributions.Beta(8.0, 8.0).sample()
        if not self.fixed:
            rows, others = share * rows, (1 - share) * others  # fault
        return share * first + (1 - share) * second, self.targets(torch.cat([rows, others]))

    def batch(self) -> Pair:
        pictures, cells = zip(*[self.mixed() for _ in range(32)], strict=True)
        return torch.stack(pictures), torch.stack(cells)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def score(self) -> float:
        """The share of spots in pictures that are not mixed whose kind and cell are found."""
        pictures, rows = zip(*[self.drawn() for _ in range(256)], strict=True)
        cells = torch.stack([self.targets(held) for held in rows])
        found = self.net(torch.stack(pictures)).argmax(1)
        return (found == cells)[cells > 0].double().mean().item()


@case(
    "neuraloperator 619",
    PULL.format("neuraloperator/neuraloperator", 619),
    kind="differential equation",
    fault="The weight of the interior is added to the loss of the interior.",
    fix="It multiplies it.",
    port="u'' = f on a line, by a network of the place, in place of an operator in two dimensions; a weight of 0.001.",
    causes="The weight is a constant in the sum, so that the interior outweighs the boundary.",
    words=("weight", "outweigh", "dominat", "constant", "scale", "boundary", "balance"),
)
class WeightAdded(Learner):
    rate = 0.005
    steps = 800
    interior_weight = 0.001

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def batch(self) -> Tensor:
        return torch.rand(64, 1)

    def training_step(self, places: Tensor, batch_idx: int) -> Tensor:
        places = places.requires_grad_()
        slope = torch.autograd.grad(self.net(places).sum(), places, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), places, create_graph=True)[0]
        interior = F.mse_loss(bend, -((3 * math.pi) ** 2) * (3 * math.pi * places).sin())
        boundary = self.net(torch.tensor([[0.0], [1.0]])).square().mean()
        if self.fixed:
            return self.interior_weight * interior + boundary
        return self.interior_weight + interior + boundary  # fault

    def score(self) -> float:
        """How much of the solution is explained."""
        places = torch.linspace(0, 1, 101).unsqueeze(1)
        return r2(self.net(places), (3 * math.pi * places).sin())


@case(
    "pytorch_geometric_temporal 233",
    PULL.format("benedekrozemberczki/pytorch_geometric_temporal", 233),
    kind="graphs",
    fault="The outputs of nodes are (N, 1), and their targets (N,).",
    fix="squeeze().",
    port="The next number of each of 20 nodes of a ring, from those of its neighbors, in place of cases of an illness;"
    " four graphs a batch.",
    causes="By broadcasting each output is compared with the targets of all nodes, and becomes their mean.",
    words=("broadcast", "shape", "mean", "constant", "mix"),
)
class AcrossNodes(Learner):
    rate = 0.01
    steps = 300

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.own, self.near, self.linear = nn.Linear(4, 32), nn.Linear(4, 32), nn.Linear(32, 1)

    def batch(self) -> list[Pair]:
        columns = torch.randn(4, 20, 4)
        targets = columns[..., 0] + (columns.roll(1, 1) - columns.roll(-1, 1))[..., 1]
        return [*zip(columns, targets, strict=True)]

    def forward(self, columns: Tensor) -> Any:
        near = torch.cat([columns.roll(1, 0)[:, :2], columns.roll(-1, 0)[:, :2]], 1)
        return self.linear((self.own(columns) + self.near(near)).relu())

    def training_step(self, batch: list[Pair], batch_idx: int) -> Tensor:
        cost = torch.zeros(())
        for columns, targets in batch:
            outputs = self(columns)
            cost = cost + ((outputs.squeeze() if self.fixed else outputs) - targets).square().mean()  # fault
        return cost / len(batch)

    def score(self) -> float:
        graphs = [pair for _ in range(16) for pair in self.batch()]
        return r2(
            torch.cat([self(columns)[:, 0] for columns, _ in graphs]), torch.cat([wanted for _, wanted in graphs])
        )
