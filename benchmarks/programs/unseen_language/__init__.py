"""A third set of published programs that no rule was written with: language models, adapters, experts, preferences.

`python -m benchmarks.programs.steps --series language` runs them. The causes were committed before any monitor saw a
program.
"""

from benchmarks.programs.steps import entered_in
from benchmarks.programs.unseen_language import (  # noqa: F401  # each enters its own
    adapters,
    attention,
    experts,
    healthy,
    labels,
    policies,
)

__all__ = ["CASES", "HEALTHY", "LEFT_OUT"]

CASES, HEALTHY = entered_in(__name__)

LEFT_OUT: dict[str, str] = {
    "how-to-train-your-gpt 6": "no harm at the positions of training: angles of wrong pairs cost 0.1 far behind them",
    "peft 1884": "harm alone with factors far greater than those of the source",
    "torchtune 2250": "its thread has no fix; adapters that are frozen are known",
    "WrinkleFree-Monorepo 13": "reported and closed by one person",
    "train-llm-from-scratch 3, ng-video-lecture 6": "not ported: a scale of attention that its weights make up for",
    "rasbt/LLMs-from-scratch 821, mlx-vlm 986": "not merged: a scale that is the rate by another name",
    "trl 3029, NeMo RL 935": "close to trl 4159, which was in view when rules were written",
    "Flow-Factory 56, cosmos-predict2.5 15": "close to adapters that are frozen, or zero in both factors",
    "Megatron-LM 894": "the same fault as minimind 859",
    "trl 1340": "the same fault as trl 4723",
    "Megatron-Bridge 4660, torchtune 2792, trl 1623": "the same fault as Automodel 1338",
    "NeMo 6409, verl 3287, OpenRLHF 973": "the same fault as torchtitan 2755",
    "slime 1414": "the same fault as grpo-flat 2",
    "axolotl 1375, transformers 46634": "the same fault as axolotl 131",
    "trl 1625, ORPO": "padding in the loss, as Molecule-Generator 20",
    "transformer-from-scratch 6": "close to Informer2020 59",
    "llama-cookbook 27, accelerate 963": "close to a schedule that is stepped at each batch, of another set",
    "transformers 48745, minGPT 75": "the future is seen, as in transformers 38094",
    "POVID 11, marin 1708, time-r1 20": "nobody answered whether it is a fault",
}
"""What was ported or looked at before any monitor ran, and why it is not here."""
