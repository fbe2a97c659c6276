"""CAMLogger in a validation: the right layer, the right class, the right map."""

import random
from collections import OrderedDict

import numpy as np
import pytest
import torch
from callbacks.user_program import Does, Within
from classifiers import classifier
from lightning.pytorch import Callback
from torch import nn
from toys import Toy, events, fit, loader, moving_average, scalars, trainer

from hookboard import CAMLogger, FeatureMapLogger, KernelLogger
from hookboard.capturing.methods import METHODS

VALIDATED = {"limit_val_batches": 1.0, "num_sanity_val_steps": 0}


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 6, 3, padding=1),
            norm1=nn.BatchNorm2d(6),
            relu1=nn.ReLU(inplace=True),
            drop=nn.Dropout2d(0.3),
            conv2=nn.Conv2d(6, 8, 3, padding=1),
            relu2=nn.ReLU(inplace=True),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            head=nn.Linear(8, 5),
        )
    )


class Classifier(Toy):
    """Looks at no label."""

    def forward(self, pictures):
        return self.net(pictures)

    def training_step(self, batch):
        return self(batch[0]).square().mean()

    def validation_step(self, batch):
        self(batch[0])


def data(count=2, size=4):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 3, 8, 8, generator=generator), torch.randint(5, (size,), generator=generator))
        for _ in range(count)
    ]


class Keeps(CAMLogger):
    """Keeps what it has drawn."""

    def _maps(self, seen, aspect):
        self.layer, self.seen, self.maps = seen.layer, seen, super()._maps(seen, aspect)
        return self.maps

    def _caption(self, *given):
        self.texts = [*getattr(self, "texts", []), super()._caption(*given)]
        return self.texts[-1]


def grad_cam_by_hand(net, pictures, classes):
    """With the layer called outside of the network, and nothing hooked."""
    with torch.no_grad():
        a = net[:6](pictures)
    a.requires_grad_()
    scores = net[6:](a * 1.0)
    (g,) = torch.autograd.grad(sum(scores[n, k] for n, k in enumerate(classes)), a)
    return (g.mean((2, 3), keepdim=True) * a).sum(1).relu().detach()


def of_numbers(count, last=None):
    """A network that returns `count` numbers for each picture."""
    net = cnn()
    net.head = nn.Linear(8, count)
    return nn.Sequential(OrderedDict([*net.named_children(), ("last", last or nn.Identity())]))


def shown_by(callback, net=None, folder=None, batches=None, **options):
    model = Classifier(net or cnn())
    fit(folder, model, batches or data(), callback, **VALIDATED, **options)
    return model


@pytest.mark.parametrize(("target", "is_frozen"), [("predicted", False), ("label", False), (3, False), (3, True)])
def test_the_map_is_that_of_the_class_that_was_asked_for(tmp_path, target, is_frozen):
    callback, net = Keeps(target=target, every_n_steps=1), cnn()
    net[:6].requires_grad_(not is_frozen)
    shown_by(callback, net, tmp_path).net.eval()
    pictures, labels = data()[0]
    classes = {"predicted": net(pictures).argmax(1), "label": labels, 3: torch.full((4,), 3)}[target]
    assert callback.seen.classes.tolist() == classes.tolist()
    assert torch.allclose(callback.maps, grad_cam_by_hand(net, pictures, classes), atol=1e-6)
    assert callback.maps.std() > 0


@pytest.mark.parametrize("method", METHODS)
def test_each_layer_that_is_named_has_a_picture_that_says_what_it_is(tmp_path, method):
    names = ["net.relu2"] if method == "cam" else ["net.conv1", "net.relu2"]
    shown_by(CAMLogger(names, method=method, every_n_steps=1), folder=tmp_path)
    found = events(tmp_path)
    assert sorted(found.Tags()["images"]) == [f"cam/{name}/{method}" for name in names]
    described = found.summary_metadata[f"cam/net.relu2/{method}"].summary_description
    assert described.startswith(f"{METHODS[method].title} at net.relu2 (validation batch 0)")


@pytest.mark.parametrize("last", [nn.Identity(), nn.Softmax(dim=1)], ids=["logits", "shares"])
def test_prediction_and_label_stand_beside_each_sample(tmp_path, last):
    names = ["ant", "bee", "cat", "dog", "eel"]
    callback = Keeps(target="label", classes=names, samples=2, every_n_steps=1)
    net = shown_by(callback, of_numbers(5, last), tmp_path).net.eval()
    pictures, labels = data()[0]
    shares = net[:-1](pictures).softmax(1)
    assert len(callback.texts) == 2
    for k, text in enumerate(callback.texts):
        best, label = shares[k].argmax(), names[labels[k]]
        assert text == f"predicted {names[best]} ({100 * shares[k, best]:.0f}%), label {label}, map of {label}"


class Pools(nn.Sequential):
    """As Hugging Face's: it returns its maps and what it has pooled, of which the scores use the second."""

    def forward(self, pictures):
        maps = super().forward(pictures)
        return {"maps": maps, "pooled": maps.mean((2, 3))}


def wraps():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU())
    return nn.Sequential(Pools(encoder), Does(lambda returned: returned["pooled"]), nn.Linear(6, 5))


class Windows(nn.Module):
    """Its layer sees windows of 4x4 positions, as Swin's attention does."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Conv2d(3, 6, 1), nn.Linear(6, 5)

    def forward(self, pictures):
        windows = pictures.unflatten(3, (2, 4)).unflatten(2, (2, 4)).permute(0, 2, 4, 1, 3, 5)
        return self.head(self.layer(windows.flatten(0, 2)).mean((2, 3)).unflatten(0, (-1, 4)).mean(1))


@pytest.mark.parametrize(
    ("net", "callback", "message"),
    [
        (
            lambda: Within(cnn(), torch.no_grad),
            CAMLogger("net.module.relu2"),
            "'net.module.relu2' returned, or it runs under torch.no_grad",
        ),
        (lambda: nn.Conv2d(3, 5, 1), CAMLogger(), "CAMLogger shows nothing: no module took pictures .* as one module"),
        (cnn, CAMLogger(target=5), "target=5 selects classes .* range ..5..: .* classes 0 to 4"),
        (cnn, CAMLogger("net.conv1", method="cam"), "needs a linear head on the global average of 'net.conv1'"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), CAMLogger(), "returned maps larger than one pixel"),
        (cnn, CAMLogger("net.flat"), "module 'net.flat' returned neither maps"),
        (wraps, CAMLogger("net.0"), "do not depend on the first tensor that module 'net.0' returned"),
        (Windows, CAMLogger(), "'net.layer' has 16 samples for 4 pictures, such as windows of them"),
    ],
    ids=["no_grad", "no scores", "no such class", "no head", "no maps", "no maps of that", "other output", "windows"],
)
def test_where_no_map_can_be_had_one_sentence_says_why_and_the_run_goes_on(tmp_path, net, callback, message):
    run, model = trainer(tmp_path, callback, **VALIDATED), Classifier(net())
    with pytest.warns(UserWarning, match=message) as said:
        run.validate(model, loader(data()))
    assert len([warning for warning in said if "hookboard" in str(warning.message)]) == 1


class EveryState(Callback):
    """Everything that a callback could disturb, after every batch and validation."""

    def __init__(self):
        self.states = []

    def on_train_batch_end(self, trainer, model, *args):
        parameters = list(model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        tensors = [*model.state_dict().values(), *gradients, torch.get_rng_state()]
        modes = [module.training for module in model.modules()], [p.requires_grad for p in parameters]
        drawn = random.getstate(), np.random.get_state()[1].tolist()
        self.states.append(([tensor.tolist() for tensor in tensors], modes, drawn))

    on_validation_end = on_train_batch_end


class DropsInValidation(Classifier):
    """Leaves dropout and batch norm in training mode in validation: both change when they run."""

    def on_validation_model_eval(self):
        self.net.eval()
        self.net.drop.train()
        self.net.norm1.train()


def test_steps_with_pictures_of_everything_leave_every_bit_as_it_was(tmp_path):
    def states(folder, *callbacks):
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        every = EveryState()
        run = trainer(folder, *callbacks, every, max_epochs=1, val_check_interval=1, **VALIDATED)
        shuffled = torch.utils.data.DataLoader(data(8), batch_size=None, shuffle=True)
        run.fit(DropsInValidation(cnn()), shuffled, loader(data(2)))
        return every.states

    pictures = [
        FeatureMapLogger(every_n_steps=1),
        FeatureMapLogger(stage="train", every_n_steps=1),
        KernelLogger(every_n_steps=1),
        CAMLogger(every_n_steps=1),
        CAMLogger(method="eigen_cam", every_n_steps=1),
    ]
    with_pictures, without = states(tmp_path, *pictures), states(None)
    assert len(events(tmp_path).Images("cam/net.relu2/grad_cam")) == 8
    assert len(without) == 16
    assert with_pictures == without


def test_the_layer_is_the_last_one_that_the_scores_depend_on(tmp_path):
    net = wraps()
    callback, _ = validated_with(data()[0][1], net, tmp_path)
    assert callback.layer.name == "net.0.0"
    maps = net[0][0](data()[0][0])
    weights = net[2].weight[callback.seen.classes] / maps[0, 0].numel()  # the gradient behind an average
    assert torch.allclose(callback.maps, torch.einsum("nc,nchw->nhw", weights, maps).relu(), atol=1e-6)


# Models that make a second call harder than it looks.


@pytest.mark.parametrize("modules", [None, "net.1"])
def test_of_a_module_that_is_used_twice_the_call_with_maps_is_shown(tmp_path, modules):
    relu = nn.ReLU()
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 8)
    callback = Keeps(modules, every_n_steps=1)
    shown_by(callback, nn.Sequential(nn.Conv2d(3, 6, 3), relu, *pooled, relu, nn.Linear(8, 5)), tmp_path)
    assert callback.layer.name == "net.1"
    assert callback.maps.shape == (4, 6, 6)


def test_under_averaged_weights_the_map_is_of_the_weights_that_were_validated(tmp_path):
    validated = []

    class KeepsScores(Classifier):
        def validation_step(self, batch):
            validated.append(self(batch[0]).clone())

    callback = Keeps(every_n_steps=1)
    fit(tmp_path, KeepsScores(cnn()), data(), callback, moving_average(0.9), max_epochs=2, **VALIDATED)
    assert torch.allclose(callback.seen.scores, validated[-2], atol=1e-6)


def validated_with(targets, net, folder, **options):
    callback, pictures = Keeps(**options), data()[0][0]
    trainer(folder, callback, **VALIDATED).validate(Classifier(net), loader([(pictures, targets)]))
    with torch.no_grad():
        return callback, net.eval()(pictures)


@pytest.mark.parametrize(
    ("last", "targets", "classes"),
    [
        (nn.Identity(), torch.randn(4, 3), ["cat", "dog"]),
        (nn.Flatten(0), torch.randn(4, 3), ["cat", "dog"]),
        (nn.Identity(), torch.tensor([3, 0, 2, 9]), None),
        (nn.Sigmoid(), torch.tensor([0.0, 1.0, 1.0, 0.0]), ["cat", "dog"]),
    ],
)
def test_one_number_speaks_for_and_against_its_class_and_is_not_called_a_prediction(tmp_path, last, targets, classes):
    callback, numbers = validated_with(targets, of_numbers(1, last), tmp_path, classes=classes)
    numbers = numbers.flatten()
    assert callback.seen.classes.tolist() == (numbers > 0).long().tolist()
    for number, text in zip(numbers, callback.texts, strict=True):
        assert text == f"output {number:.3g}, map of what {'raises' if number > 0 else 'lowers'} it"


def test_several_numbers_that_are_no_scores_are_not_called_predictions_of_a_class(tmp_path):
    callback, numbers = validated_with(torch.rand(4, 3) * 7, of_numbers(3), tmp_path, target=1)
    assert callback.texts == [f"output 1 is {number:.3g}, map of what raises it" for number in numbers[:, 1]]


def test_cam_takes_the_weights_of_a_head_with_one_output(tmp_path):
    net = of_numbers(1)
    callback, scores = validated_with(torch.tensor([0, 1, 1, 0]), net, tmp_path, method="cam")
    without_bias = (scores - net.head.bias.detach())[:, 0] * scores[:, 0].sign()
    assert torch.allclose(callback.maps.mean((1, 2)), without_bias, atol=1e-6)


def test_labels_out_of_range_are_answered_and_not_looked_up(tmp_path):
    with pytest.warns(UserWarning, match="target='label' selects classes .* range ..255.."):
        validated_with(torch.full((4,), 255), cnn(), tmp_path, target="label")


def test_integers_that_are_not_one_for_each_picture_are_no_labels(tmp_path):
    labels = torch.tensor([4, 2, 0, 1])
    callback, _ = validated_with({"size": torch.tensor([8, 8]), "labels": labels}, cnn(), tmp_path)
    assert "label 4," in callback.texts[0]


def test_what_forward_logs_is_logged_once(tmp_path):
    class Logs(Classifier):
        def forward(self, pictures):
            scores = self.net(pictures)
            self.log("mean_score", scores.mean())
            return scores

    def run(folder, *callbacks):
        fit(folder, Logs(cnn()), data(), *callbacks, **VALIDATED)
        return {tag: points for tag, points in scalars(folder).items() if tag.startswith("mean_score")}

    expected = run(tmp_path / "without")
    assert expected
    assert run(tmp_path / "with", CAMLogger(every_n_steps=1)) == expected
    assert events(tmp_path / "with").Tags()["images"]


def test_the_model_is_found_if_its_forward_is_set_on_the_instance(tmp_path):
    class SetsForward(Classifier):
        def __init__(self):
            super().__init__(cnn())
            self.last = nn.Linear(5, 3)
            self.forward = self.score

        def score(self, pictures):
            return self.last(self.net(pictures))

    callback = Keeps(every_n_steps=1)
    fit(tmp_path, SetsForward(), data(), callback, **VALIDATED)
    assert callback.seen.scores.shape == (4, 3)


FAMILIES = {
    "convnext_tiny": ("features", 64),
    "densenet121": ("features", 64),
    "googlenet": ("inception5b", 64),
    "maxvit_t": ("blocks.1", 64),
    "mobilenet_v3_small": ("features", 64),
    "resnet18": ("layer4", 64),
    "shufflenet_v2_x0_5": ("conv5", 64),
    "squeezenet1_0": ("classifier.2", 64),
    "swin_t": ("features.7.1.attn", 64),
    "vit_b_32": ("encoder.layers.encoder_layer_1.self_attention", 64),
}
"""Of families whose last maps stand elsewhere one model each: the layer of its maps, and the size of a picture."""


@pytest.mark.large
@pytest.mark.filterwarnings("ignore:The default weight initialization")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_classifier_has_feature_maps_and_a_class_activation_map(tmp_path, family):
    layer, size = FAMILIES[family]
    torch.manual_seed(0)
    run = trainer(tmp_path, FeatureMapLogger(), CAMLogger(), **VALIDATED)
    run.validate(Toy(classifier(family)), loader([torch.randn(2, 3, size, size)]))
    tags = events(tmp_path).Tags()["images"]
    (cam,) = [tag for tag in tags if tag.startswith("cam/")]
    assert cam == f"cam/net.{layer}/grad_cam"
    assert 1 <= len(tags) - 1 <= 16
