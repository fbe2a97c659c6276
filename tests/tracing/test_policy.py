"""Policy gradients: groups of answers with equal rewards teach nothing, which is said."""

import copy

import pytest
import torch
from torch import nn
from tracing.steps import in_hugging_face, in_lightning

from hookboard import audit

TOKENS, LENGTH, GROUP, GROUPS = 8, 5, 4, 4
FASTER = {"learning_rate": 1e-2}


class Policy(nn.Module):
    """Takes groups of sampled answers, (rows, LENGTH), and returns GRPO's loss, whose ratio is 1 in the first step."""

    def __init__(self, reward, kl=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.reward, self.kl = reward, kl
        self.model = nn.Sequential(nn.Embedding(TOKENS, 16), nn.Linear(16, TOKENS))
        self.reference = copy.deepcopy(self.model).requires_grad_(False)

    def forward(self, x):
        own = log_probabilities(self.model, x)
        with torch.no_grad():
            distance = log_probabilities(self.reference, x)
        rewards = torch.tensor([float(self.reward(row)) for row in x.tolist()]).view(-1, GROUP)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        gain = (own - own.detach()).exp() * advantages.view(-1, 1)
        distance = distance - own
        return {"loss": (self.kl * (distance.exp() - distance - 1) - gain).mean()}


def log_probabilities(model, x):
    return model(x[:, :-1]).log_softmax(-1).gather(-1, x[:, 1:, None]).squeeze(-1)


def answers(count=1):
    return torch.randint(TOKENS, (count, GROUP * GROUPS, LENGTH), generator=torch.Generator().manual_seed(0))


def always_0(answer):
    return 0


def variety(answer):
    return len(set(answer))


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_advantages_that_are_all_0_are_a_note(kl):
    net = Policy(always_0, kl)
    (note,) = [one for one in audit(net, answers()[0], lambda x: net(x)["loss"]) if one.rule == "cut"]
    assert note.severity == "note"
    assert note.evidence == "the loss of the first batch and all gradients are exactly 0"


def test_a_policy_whose_loss_is_0_and_whose_gradient_is_not_is_left_alone():
    net, advantages = Policy(variety), torch.tensor([1.0, -1.0]).repeat(8)[:, None]

    def loss(x):
        own = log_probabilities(net.model, x)
        return ((own - own.detach()).exp() * advantages).mean()

    assert loss(answers()[0]).item() == 0
    assert [one.rule for one in audit(net, answers()[0], loss)] == []


@pytest.mark.trains
@pytest.mark.parametrize(("train", "options"), [(in_lightning, {}), (in_hugging_face, FASTER)])
def test_a_policy_that_is_never_rewarded_ends_in_an_alarm(train, options, tmp_path):
    verdicts = train(tmp_path, Policy(always_0), answers(12), **options).verdicts
    (alarm,) = [one for one in verdicts if one.severity == "alarm"]
    assert alarm.rule == "no_gradient"
    assert "advantages" in next(one for one in verdicts if one.rule == "cut").advice
    assert "update_too_small" not in {one.rule for one in verdicts}  # what momentum still does is no matter of the rate


@pytest.mark.trains
@pytest.mark.parametrize(("train", "kl", "options"), [(in_lightning, 0.0, {}), (in_hugging_face, 0.1, FASTER)])
def test_nothing_is_said_of_a_policy_whose_answers_are_told_apart(train, kl, options, tmp_path):
    assert train(tmp_path, Policy(variety, kl), answers(12), **options).verdicts == ()
