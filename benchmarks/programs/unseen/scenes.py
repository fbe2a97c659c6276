"""Boxes, segments and graphs."""

from typing import Any

import torch
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.common import accuracy, mlp
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name

Pair = tuple[Tensor, Tensor]


def corners(boxes: Tensor) -> Tensor:
    """Boxes as left, top, right and bottom, given the middle and the size."""
    middle, size = boxes.chunk(2, 1)
    return torch.cat([middle - size / 2, middle + size / 2], 1)


def generalized_iou(first: Tensor, second: Tensor) -> Tensor:
    """Of boxes that are given by their corners, each with its own."""
    shared = (torch.min(first[:, 2:], second[:, 2:]) - torch.max(first[:, :2], second[:, :2])).clamp(min=0).prod(1)
    around = (torch.max(first[:, 2:], second[:, 2:]) - torch.min(first[:, :2], second[:, :2])).clamp(min=0).prod(1)
    union = (first[:, 2:] - first[:, :2]).prod(1) + (second[:, 2:] - second[:, :2]).prod(1) - shared
    return shared / union - (around - union) / around


def drawn(boxes: Tensor) -> Tensor:
    """Pictures of 16x16 with a bright box each, of noise otherwise."""
    places = (torch.arange(16) + 0.5) / 16
    left, top, right, bottom = corners(boxes).unsqueeze(2).unbind(1)
    inside = ((places > left) & (places < right)).unsqueeze(1) & ((places > top) & (places < bottom)).unsqueeze(2)
    return inside + 0.1 * torch.randn(len(boxes), 16, 16)


@case(
    "owl-vit-object-detection 14",
    ISSUE.format("stevebottos/owl-vit-object-detection", 14),
    kind="detection",
    fault="generalized_box_iou gets middles and sizes.",
    fix="Corners.",
    port="One large bright box in a picture of 16x16, and three layers, in place of OWL-ViT.",
    causes="The overlap is computed of wrong boxes, as middles and sizes are taken for corners.",
    words=("format", "corner", "box", "iou", "nan", "nonfinite", "infinite"),
)
class MiddlesForCorners(Learner):
    rate = 0.001

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = nn.Sequential(nn.Flatten(), mlp(256, 64, 64, 4), nn.Sigmoid())

    def batch(self) -> Pair:
        sizes = 0.4 + 0.4 * torch.rand(64, 2)
        room = torch.minimum(1 - sizes, sizes / 2)  # so that middles and sizes are boxes, if taken for corners
        boxes = torch.cat([sizes / 2 + room * torch.rand(64, 2), sizes], 1)
        return drawn(boxes), boxes

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        pictures, boxes = batch
        found = self.net(pictures)
        first, second = (corners(found), corners(boxes)) if self.fixed else (found, boxes)  # fault
        return F.l1_loss(found, boxes) + (1 - generalized_iou(first, second)).mean()

    def score(self) -> float:
        """The mean overlap of the boxes that are found with the true ones."""
        pictures, boxes = self.batch()
        return generalized_iou(corners(self.net(pictures)), corners(boxes)).clamp(min=0).mean().item()


def soft_dice(likely: Tensor, wanted: Tensor, over: tuple[int, ...]) -> Tensor:
    return (2 * (likely * wanted).sum(over) + 1e-5) / ((likely + wanted).sum(over) + 1e-5)


@case(
    "MIPCandy 125",
    PULL.format("ProjectNeura/MIPCandy", 125),
    kind="segmentation",
    fault="The dice coefficient is one number over all classes and pixels.",
    fix="One of each class, and then their mean.",
    port="Pictures of 16x16 with four kinds of spots of one to four pixels in place of scans, and this term alone.",
    causes="Classes are flattened together, so that the background outweighs the small classes.",
    words=("class", "background", "imbalanc", "constant", "collapse", "rare"),
)
class OneDice(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 5, 3, padding=1))

    def batch(self) -> Pair:
        pictures, labels = torch.zeros(32, 16, 16), torch.zeros(32, 16, 16, dtype=torch.long)
        for kind in range(1, 5):
            rows, columns = torch.randint(14, (2, 32))
            for more in range(kind):
                at = (torch.arange(32), rows + more // 2, columns + more % 2)
                pictures[at], labels[at] = kind / 4, kind
        return (pictures + 0.05 * torch.randn_like(pictures)).unsqueeze(1), labels

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        pictures, labels = batch
        likely, wanted = self.net(pictures).softmax(1), F.one_hot(labels, 5).permute(0, 3, 1, 2)
        return 1 - soft_dice(likely, wanted, (0, 2, 3) if self.fixed else (0, 1, 2, 3)).mean()  # fault

    def score(self) -> float:
        """The mean over classes, without the background, of the dice coefficient."""
        pictures, labels = self.batch()
        found = F.one_hot(self.net(pictures).argmax(1), 5)
        return soft_dice(found, F.one_hot(labels, 5), (0, 1, 2))[1:].mean().item()


def graphs(samples: int) -> tuple[Tensor, Tensor]:
    """Graphs of 12 nodes with columns of their own, and 36 edges each, from node to node, not the same in each."""
    return torch.randn(samples, 12, 8), torch.randint(12, (samples, 2, 36))


@case(
    "uvadlc_notebooks 5",
    ISSUE.format("phlippe/uvadlc_notebooks", 5),
    kind="graphs",
    fault="Nodes of the flattened batch are looked up with the batch's size as the step from graph to graph.",
    fix="With the number of nodes.",
    port="Each node is to give the column of that neighbor of which the key is greatest, in place of citations.",
    causes="Attention weights are computed from nodes of other graphs, as the index of the flattened batch is wrong.",
    words=("batch", "sample", "mix", "index", "graph", "attention"),
)
class WrongStride(Learner):
    rate = 0.005

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.values, self.pairs = nn.Linear(8, 16), mlp(16, 32, 1)
        self.head = mlp(16, 32, 1)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        columns, edges = graphs(10)
        edges[:, 0, :12] = torch.arange(12)  # no node is alone
        keys = self.dense(columns[..., 0].gather(1, edges[:, 1]), edges)
        nearest = columns[..., 1].gather(1, edges[:, 1].gather(1, keys.argmax(2)))
        return columns, edges, nearest

    def dense(self, of_edges: Tensor, edges: Tensor) -> Tensor:
        """Numbers of edges, as (graphs, nodes, edges); -inf where an edge does not start at the node."""
        starts = F.one_hot(edges[:, 0], 12).transpose(1, 2) > 0
        return of_edges.unsqueeze(1).masked_fill(~starts, -torch.inf)

    def forward(self, columns: Tensor, edges: Tensor) -> Any:
        samples, nodes, _ = columns.shape
        flat = columns.flatten(0, 1)
        first = (nodes if self.fixed else samples) * torch.arange(samples).unsqueeze(1)  # fault
        both = torch.cat([flat[first + edges[:, 0]], flat[first + edges[:, 1]]], 2)
        weights = self.dense(self.pairs(both).squeeze(2), edges).softmax(2)
        ends = self.values(columns).gather(1, edges[:, 1].unsqueeze(2).expand(-1, -1, 16))
        return self.head(weights @ ends).squeeze(2)

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        columns, edges, nearest = batch
        return F.mse_loss(self(columns, edges), nearest)

    def score(self) -> float:
        """How much of the neighbors' columns is explained."""
        wrong = [(self(columns, edges) - wanted).square().mean() for columns, edges, wanted in self.drawn(10)]
        return 1 - sum(wrong).item() / sum(wanted.var() for _, _, wanted in self.drawn(10)).item()

    def drawn(self, times: int) -> list[Any]:
        return [self.batch() for _ in range(times)]


@case(
    "rl4co 227",
    ISSUE.format("ai4co/rl4co", 227),
    kind="graphs",
    fault="The edges of one graph are used for the flattened nodes of all.",
    fix="They are repeated for each graph, with its offset.",
    port="Each node of a ring of 12 is to tell whether its neighbors' sum is positive, in place of routes.",
    causes="Only the first graph of a batch gets messages, as the edges of the others have no offset.",
    words=("batch", "sample", "offset", "index", "graph", "edge"),
)
class FirstGraph(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.first, self.second = nn.Linear(1, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 2)
        around = torch.arange(12)
        self.edges = torch.stack([around.repeat(2), torch.cat([(around + 1) % 12, (around - 1) % 12])])

    def batch(self) -> Pair:
        columns = torch.randn(32, 12, 1)
        return columns, ((columns.roll(1, 1) + columns.roll(-1, 1)).squeeze(2) > 0).long()

    def forward(self, columns: Tensor) -> Any:
        samples, nodes, _ = columns.shape
        edges = self.edges
        if self.fixed:  # fault
            edges = (edges.unsqueeze(1) + nodes * torch.arange(samples).view(1, -1, 1)).flatten(1)
        states = self.first(columns.flatten(0, 1))
        messages = torch.zeros_like(states).index_add(0, edges[1], states[edges[0]])
        return self.head(self.second((states + messages).relu()).relu()).view(samples, nodes, 2)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())

    def score(self) -> float:
        columns, wanted = self.batch()
        return accuracy(self(columns), wanted)
