"""PennyLane: its tutorial of torch.nn layers: two moons by two qubits: SGD 0.2, L1Loss of a softmax, batches of 5."""

import pennylane as qml
import torch
from sklearn.datasets import make_moons

FAULT = ("rate", "lr=200 instead of 0.2")
DEVICE = qml.device("default.qubit", wires=2)


@qml.qnode(DEVICE, interface="torch", diff_method="backprop")
def circuit(inputs, weights):
    qml.AngleEmbedding(inputs, wires=range(2))
    qml.BasicEntanglerLayers(weights, wires=range(2))
    return [qml.expval(qml.PauliZ(wires=i)) for i in range(2)]


def train(run):
    x, y = make_moons(200, noise=0.1, random_state=0)
    hot = torch.nn.functional.one_hot(torch.tensor(y)).float()
    rows = torch.utils.data.TensorDataset(torch.tensor(x).float(), hot)
    layers = [torch.nn.Linear(2, 2), qml.qnn.TorchLayer(circuit, {"weights": (6, 2)}), torch.nn.Linear(2, 2)]
    model = torch.nn.Sequential(*layers, torch.nn.Softmax(dim=1))
    optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=200.0 if run.faulty else 0.2), torch.nn.L1Loss()
    loader = torch.utils.data.DataLoader(rows, batch_size=5, shuffle=True, drop_last=True)
    batches = (batch for _ in range(4) for batch in loader)
    run.descend(model, optimizer, batches, lambda x, y: loss_of(model(x), y))
