"""torch-geometric: the GCN of its first tutorial on the karate club (Adam 0.01), and its GIN on made graphs."""

import torch
from torch_geometric.datasets import FakeDataset, KarateClub
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, GIN, MLP, global_add_pool

FAULT = ("dropout", "dropout=0.99 in the GCN")
VARIANTS = ("karate", "gin")


class Classifier(torch.nn.Module):  # examples/mutag_gin.py
    def __init__(self, inputs, classes):
        super().__init__()
        self.gnn = GIN(inputs, 32, 3, dropout=0.5, jk="cat")
        self.classifier = MLP([32, 32, classes], norm="batch_norm", dropout=0.5)

    def forward(self, x, edge_index, batch, size):
        return self.classifier(global_add_pool(self.gnn(x, edge_index), batch, size))


def train(run):
    if run.variant == "karate":
        karate = KarateClub()[0]
        batches, model = [karate] * 200, GCN(34, 16, 3, 4, dropout=0.99 if run.faulty else 0.0)
    else:
        graphs = FakeDataset(200, avg_num_nodes=20, num_channels=16, task="graph", num_classes=3)
        batches = [batch for _ in range(15) for batch in DataLoader(graphs, 16, shuffle=True)]
        model = Classifier(graphs.num_features, graphs.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(batch):
        if run.variant == "karate":
            out, y = model(batch.x, batch.edge_index)[batch.train_mask], batch.y[batch.train_mask]
        else:
            out, y = model(batch.x, batch.edge_index, batch.batch, batch.num_graphs), batch.y
        return torch.nn.functional.cross_entropy(out, y)

    run.descend(model, optimizer, batches, loss_of)
