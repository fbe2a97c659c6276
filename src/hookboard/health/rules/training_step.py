"""What is wrong with the training step itself; `auditing/` reads it in the code, and these rules pass it on."""

from hookboard.health.rule import Rule, Severities, passed_on
from hookboard.health.run import Run

SCALE_TARGETS = "subtract the mean of the training targets and divide by their standard deviation"
"""The advice for targets of a regression that are not scaled."""


def are_targets_unscaled(run: Run) -> bool:
    """Return True if it was found that the step compares outputs with targets that are not scaled."""
    return any(symptom.advice == SCALE_TARGETS for rule, symptom in run.findings if rule == "targets")


def _rule(name: str, gives: Severities, about: str) -> Rule:
    return Rule(name, passed_on, at_once=True, about=about, gives=gives)


STEP_RULES = (
    _rule(
        "loss_input",
        "alarm",
        "a loss for logits gets the output of softmax, sigmoid, tanh or ReLU; one for log-probabilities gets something "
        "else; one written by hand takes the logarithm or Dice overlap of logits",
    ),
    _rule(
        "no_influence",
        "alarm or note",
        "a softmax or norm over one value, a cross entropy of one class, or attention that does not know the order of "
        "its tokens; as a note, a line whose result is unused, such as `scores.masked_fill(...)`",
    ),
    _rule(
        "batch_mixing",
        "alarm or note",
        "with another first sample, the outputs of other samples change: a softmax, attention or recurrent layer over "
        "the samples, a view for a transpose, a wrong index; a note where that may be intended",
    ),
    _rule(
        "loss_shape",
        "alarm",
        "output and target have shapes that broadcast, such as (N, 1) and (N,), so that each output is compared with "
        "every target; a view for a transpose mixes classes and positions; or outputs and targets are flattened in "
        "different orders",
    ),
    _rule(
        "output_range",
        "alarm or note",
        "the model's last function cannot produce some of the targets, such as negative ones after ReLU or several "
        "labels at once after softmax; a note if "
        "that is at most 1 % of them",
    ),
    _rule(
        "targets",
        "alarm or note",
        "targets that the loss does not accept, tokens that are shifted twice, or a batch of at least 32 samples of "
        "one class of several; as notes, targets that should be scaled, or are all the same",
    ),
    _rule(
        "cut",
        "alarm or note",
        "a term of the loss that trains nothing: `detach`, `item` or `no_grad` cuts its gradient, or it is cleared "
        "before an optimizer steps; gradients that are all 0; as a note, a call that cuts the gradient of some "
        "parameters",
    ),
    _rule("masked_row", "alarm", "rows of attention that are fully masked, and make the loss NaN"),
    _rule(
        "eval_mode",
        "alarm or note",
        "batch norms whose running statistics were never made, never move, or do not follow the weights, as in an "
        "average of a model; as notes, norms or dropouts in evaluation mode while the model trains, or in training "
        "mode in a frozen module",
    ),
    _rule("unbounded_loss", "alarm", "the loss is minus an error, or a plain difference to the targets"),
    _rule("loss_scale", "alarm or note", "a loss that is multiplied by 1e-6 or less; a note if it is exactly 0"),
    _rule(
        "future_leak",
        "alarm",
        "outputs change with the very input that they are to predict: the targets are inputs of later positions, which "
        "the model sees, or tokens that are not shifted",
    ),
    _rule("dropout", "alarm", "a dropout that drops 90 % of the values or more"),
    _rule("padding_mask", "alarm", "a key_padding_mask that hides the tokens and shows the padding"),
    _rule("padding", "note", "the loss counts what pads the rows of a batch"),
    _rule("class_weights", "note", "a frequent class has a larger weight in the loss than a rare one"),
    _rule(
        "optimizer_settings",
        "alarm or note",
        "an epsilon that is 0 in float16; as a note, an epsilon, momentum or beta far from any usual one",
    ),
    _rule(
        "target_leak",
        "alarm or note",
        "a column of the input is the target; a note if it is so up to scale and offset",
    ),
    _rule(
        "stale_gradients",
        "alarm",
        "an optimizer steps with gradients that were not cleared since its step before",
    ),
    _rule("cleared_gradients", "alarm", "`zero_grad()` is called between the backward pass and the step"),
    _rule("wrong_optimizer", "alarm", "an optimizer steps without gradients, after a backward pass for another one"),
    _rule(
        "not_in_optimizer",
        "alarm or note",
        "parameters that get a gradient and are in no optimizer; an alarm if that is all of them, if they were frozen "
        "at first, or if they belong to layers that the model does not have, as in a list or in a copy",
    ),
    _rule("frozen", "note", "how many weights are trained, and which modules are frozen"),
    _rule(
        "schedule",
        "alarm or note",
        "the rate is 0 in more than half of the steps, or stays below half of its peak because a schedule that counts "
        "batches is stepped once an epoch; as a note, a cosine goes up again",
    ),
)

STEP = frozenset(rule.name for rule in STEP_RULES)
"""The names of the rules that judge the code of the training step."""
