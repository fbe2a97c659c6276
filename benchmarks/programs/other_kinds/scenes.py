"""Pictures with places in them, graphs, fields and equations."""

import math
from typing import Any

import torch
from benchmarks.programs.other_kinds.common import Pair, mlp, some_digits
from benchmarks.programs.parts import accuracy, r2
from benchmarks.programs.program import ISSUE, PULL, Learner, case, healthy
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name


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
    "neuraloperator 619",
    PULL.format("neuraloperator/neuraloperator", 619),
    kind="differential equation",
    fault="The weight of the interior is added to the loss of the interior.",
    fix="It multiplies it.",
    port="u'' = f on a line, by a network of the place, in place of an operator in two dimensions; a weight of 0.001.",
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
    "pytorch-lightning 19138",
    ISSUE.format("Lightning-AI/pytorch-lightning", 19138),
    kind="transformer",
    fault="The sum of the inputs and the encodings of positions is computed, and not assigned.",
    fix="It is assigned.",
    port="Tokens that are to be given in reverse order in place of the language of a book; the shapes of the encodings,"
    " which were wrong as well, are right.",
    words=("position", "unused", "never used", "order", "not used", "dead"),
)
class NotAssigned(Learner):
    rate = 0.002

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.tokens = nn.Embedding(12, 32)
        angles = torch.arange(8).unsqueeze(1) * torch.exp(-math.log(1e4) * torch.arange(0, 32, 2) / 32)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], 1))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, 12)

    def batch(self) -> Tensor:
        return torch.randint(12, (64, 8))

    def forward(self, tokens: Tensor) -> Any:
        seen = self.tokens(tokens)
        placed = seen + self.places
        return self.head(self.layers(placed if self.fixed else seen))  # fault

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(tokens).flatten(0, 1), tokens.flip(1).flatten())

    def score(self) -> float:
        tokens = self.batch()
        return accuracy(self(tokens), tokens.flip(1))


@healthy("segments of digits", "segmentation", 0.85)
class Segments(Learner):
    """The ink of noisy digits, by cross entropy and dice, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.low = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)
        )
        self.up = nn.Conv2d(32, 1, 3, padding=1)

    def batch(self) -> Pair:
        images = some_digits(64)[0].view(-1, 1, 8, 8)
        return images + 0.2 * torch.randn_like(images), (images > 0.5).float()

    def forward(self, images: Tensor) -> Any:
        high = self.down(images)
        return self.up(torch.cat([high, self.low(high)], 1))

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        logits = self(batch[0])
        likely, ink = logits.sigmoid().flatten(1), batch[1].flatten(1)
        dice = (2 * (likely * ink).sum(1) + 1) / (likely.sum(1) + ink.sum(1) + 1)
        return F.binary_cross_entropy_with_logits(logits, batch[1]) + (1 - dice).mean()

    def score(self) -> float:
        images, ink = self.batch()
        found = self(images) > 0
        return (2 * (found * ink).sum() / (found.sum() + ink.sum())).item()


@healthy("classes of graphs", "graphs", 0.85)
class Graphs(Learner):
    """Whether a graph has a node with four edges or more, of normalized dense matrices with self loops."""

    steps = 500

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 32), nn.Linear(32, 32)])
        self.head = mlp(32, 32, 2)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        upper = (torch.rand(64, 8, 8) < 0.3).float().triu(1)
        edges = upper + upper.transpose(1, 2)
        busy = edges.sum(2) >= 4
        return edges, torch.stack([edges.sum(2) / 4, torch.ones(64, 8)], 2), busy.any(1).long()

    def forward(self, edges: Tensor, states: Tensor) -> Any:
        looped = edges + torch.eye(8)
        root = looped.sum(2, keepdim=True).rsqrt()
        for layer in self.layers:
            states = (root * looped * root.transpose(1, 2) @ layer(states)).relu()
        return self.head(states.amax(1))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self(*batch[:2]), batch[2])

    def score(self) -> float:
        edges, states, labels = self.batch()
        return accuracy(self(edges, states), labels)


@healthy("rays through a disc", "radiance field", 0.8)
class Rays(Learner):
    """A field of density and color on a plane, from what rays from around see; places are told by waves."""

    steps = 400

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2 + 4 * 4, 64, 64, 2)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """The places of 24 points on each ray, as far apart as they are, and the color that is seen."""
        angles, shifts = 6.3 * torch.rand(128, 1, 1), 2 * torch.rand(128, 1, 1) - 1
        ways = torch.cat([angles.cos(), angles.sin()], 2)
        along = (torch.arange(24) + torch.rand(128, 24)).unsqueeze(2) / 12 - 1
        places = along * ways + shifts * torch.cat([-ways[..., 1:], ways[..., :1]], 2)
        truth = 10.0 * ((places - torch.tensor([0.2, -0.1])).norm(dim=2) < 0.5), (3 * places[..., 0]).sin() / 2 + 0.5
        return places, torch.full((128, 24), 1 / 12), self.seen(*truth, torch.full((128, 24), 1 / 12))

    def seen(self, density: Tensor, color: Tensor, apart: Tensor) -> Tensor:
        alpha = 1 - (-density * apart).exp()
        through = F.pad((1 - alpha + 1e-10).cumprod(1)[:, :-1], (1, 0), value=1.0)
        return (through * alpha * color).sum(1)

    def forward(self, places: Tensor, apart: Tensor) -> Any:
        waves = [turn(2**level * places) for level in range(4) for turn in (torch.sin, torch.cos)]
        density, color = self.net(torch.cat([places, *waves], 2)).unbind(2)
        return self.seen(F.softplus(density), color.sigmoid(), apart)

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.mse_loss(self(*batch[:2]), batch[2])

    def score(self) -> float:
        places, apart, wanted = self.batch()
        return r2(self(places, apart), wanted)


@healthy("an oscillator by its equation", "differential equation", 0.9)
class Oscillator(Learner):
    """u'' = -16 u, from u = 1 and u' = 0 at the start: three losses with weights of their own."""

    rate = 0.005
    steps = 1000

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        nn.init.normal_(self.net[0].weight, std=3.0)  # type: ignore[arg-type]  # a parameter

    def batch(self) -> Tensor:
        return torch.cat([torch.zeros(1, 1), torch.rand(63, 1)])

    def training_step(self, times: Tensor, batch_idx: int) -> Tensor:
        times = times.clone().requires_grad_()
        values = self.net(times)
        slopes = torch.autograd.grad(values.sum(), times, create_graph=True)[0]
        bends = torch.autograd.grad(slopes.sum(), times, create_graph=True)[0]
        start = (values[0] - 1).square().sum() + 0.1 * slopes[0].square().sum()
        return 10 * start + 0.01 * (bends + 16 * values).square().mean()

    def score(self) -> float:
        times = torch.linspace(0, 1, 101).unsqueeze(1)
        return r2(self.net(times), (4 * times).cos())


@healthy("middles of spots", "detection", 0.8)
class Middles(Learner):
    """A map of where middles are, by a focal loss against bumps, and offsets where there is one, as in CenterNet."""

    rate = 0.005
    steps = 300

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 3, 1),
        )  # fmt: skip
        nn.init.constant_(self.net[-1].bias, -2.0)  # type: ignore[arg-type]  # a parameter

    def batch(self) -> Pair:
        """Pictures of 16x16 with two spots each, and the middles of these."""
        middles, places = 2 + 12 * torch.rand(32, 2, 2), torch.arange(16) + 0.5
        near = (-(places - middles.unsqueeze(3)).square() / 2).exp()
        pictures = (near[:, :, 1].unsqueeze(3) * near[:, :, 0].unsqueeze(2)).amax(1, keepdim=True)
        return pictures + 0.1 * torch.randn_like(pictures), middles / 2

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        pictures, middles = batch
        outputs, cells = self.net(pictures), middles.long()
        near = (-(torch.arange(8) - cells.unsqueeze(3)).square() / 1.0).exp()
        bumps = (near[:, :, 1].unsqueeze(3) * near[:, :, 0].unsqueeze(2)).amax(1)
        likely = outputs[:, 0].sigmoid().clamp(1e-4, 1 - 1e-4)
        is_middle = bumps == 1
        there = -((1 - likely).square() * likely.log())[is_middle].sum()
        elsewhere = -((1 - bumps).pow(4) * likely.square() * (1 - likely).log())[~is_middle].sum()
        rows = torch.arange(len(pictures)).unsqueeze(1)
        offsets = outputs[rows, 1:, cells[..., 1], cells[..., 0]]
        return (there + elsewhere) / is_middle.sum() + F.l1_loss(offsets, middles - cells)

    def score(self) -> float:
        """The share of the two likeliest cells of which each is the cell of a middle, or beside it."""
        pictures, middles = self.batch()
        maps = self.net(pictures)[:, 0]
        peaks = torch.where(F.max_pool2d(maps, 3, 1, 1) == maps, maps, -torch.inf).flatten(1).topk(2, 1).indices
        found = torch.stack([peaks % 8, peaks // 8], 2) + 0.5
        return (torch.cdist(found.float(), middles).amin(2) < 1).double().mean().item()
