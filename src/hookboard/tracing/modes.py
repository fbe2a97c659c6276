"""Finds norms and dropouts in the wrong mode, batch norms whose statistics never move, and dropouts of nearly all."""

from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate

from torch import nn

from hookboard.base.messages import listed
from hookboard.base.torch_private import modules_in, parameters_in
from hookboard.health.rule import Finding, Rule
from hookboard.model.layers import BATCH_NORMS
from hookboard.tracing.calls import Op
from hookboard.tracing.loss_rules import TracedStep

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_WITH_MODES = (*BATCH_NORMS, nn.RNNBase)


def _has_a_mode(module: nn.Module) -> bool:
    """Return True if a norm, dropout or recurrent layer acts differently in training: running statistics, or p > 0."""
    is_norm = getattr(module, "track_running_stats", False) and getattr(module, "running_mean", None) is not None
    return is_norm or getattr(module, "dropout" if isinstance(module, nn.RNNBase) else "p", 0) > 0


def eval_mode(done: TracedStep) -> Iterator[Finding]:
    """Yield findings on norms and dropouts in the wrong mode, and on batch norms whose statistics never move."""
    yield from _still_statistics(done.step.model)
    modules = _trained_with_modes(modules_in(done.step.model), done.trained)
    ran, trained = _modes_in(done), _modes_in(done, trained=True)
    trained = {name: mode for name, mode in trained.items() if name in modules}
    restless = [name for name, is_training in ran.items() if is_training and name not in modules]
    idle = [name for name, is_training in trained.items() if not is_training]
    if idle:
        kinds = sorted({type(modules[name]).__name__ for name in idle})
        new = [name for name in idle if _is_new(modules[name])]
        as_new = (
            f"; the running statistics of {len(new)} of them are still at their initial values, which normalize nothing"
            if new
            else ""
        )
        yield Finding(
            "",
            f"{len(idle)} of {len(trained)} layers that behave differently in training ({', '.join(kinds)}) are in "
            f"evaluation mode: {listed(idle, 3)}{as_new}",
            "call train() on them" + ("" if new else ", unless this is intended"),
            "alarm" if new else "note",
            is_hard=False,
        )
    if restless:
        layers = (
            "1 normalization or dropout layer in a frozen module is"
            if len(restless) == 1
            else f"{len(restless)} normalization or dropout layers in frozen modules are"
        )
        yield Finding(
            "",
            f"{layers} in training mode: {listed(restless, 3)}",
            "call eval() on the module before the fit, and again after each train(), unless this is intended",
        )


EVAL_MODE = Rule("eval_mode", eval_mode, of="step")


def _modes_in(done: TracedStep, *, trained: bool = False) -> dict[str, bool]:
    """Return the norms and dropouts behind the loss by name, with whether any call of them was in training mode."""
    modules, found = modules_in(done.step.model), dict[str, bool]()
    behind = {value.op for value in done.loss.ancestors() if value.requires_grad or not trained}  # a baseline has none
    for op in done.step.ops:
        name, mode = op.place.module, _mode_of(op)
        module = modules.get(name)
        if op in behind and mode is not None and module is not None and _is_with_mode(module):
            found[name] = found.get(name, False) or bool(mode)
    return found


def _mode_of(op: Op) -> bool | None:
    """Return whether a call is in training mode; None if it has no mode."""
    if op.name not in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        return op.arguments.get("training")
    arguments = [*op.arguments.values()]
    share = next(place for place, argument in enumerate(arguments) if isinstance(argument, float))  # of what it drops
    return bool(arguments[share + 1])


def _trained_with_modes(modules: Mapping[str, nn.Module], trained: Collection[str] = ()) -> dict[str, nn.Module]:
    """Return by name the norms and dropouts with a mode, but for modules that are frozen now and in the step."""
    above = {path for name in trained for path in accumulate(name.split("."), "{}.{}".format)}
    return {
        name: one for name, one in modules.items() if _is_with_mode(one) and not _is_frozen_at(name, modules, above)
    }


def _is_with_mode(module: nn.Module) -> bool:
    # A dropout of a class of the user's may drop in any mode, as for Monte Carlo estimates.
    return (isinstance(module, _WITH_MODES) or type(module) in _DROPOUTS) and _has_a_mode(module)


def _is_frozen_at(name: str, modules: Mapping[str, nn.Module], above: Collection[str] = ()) -> bool:
    """Return True if the innermost module from `name` outwards that has parameters is frozen, and not in `above`."""
    while name and not parameters_in(modules[name]):
        name = name.rpartition(".")[0]
    return bool(name) and name not in above and _is_frozen(modules[name])


def _is_frozen(module: nn.Module) -> bool:
    weights = parameters_in(module).values()
    return bool(weights) and not any(parameter.requires_grad for parameter in weights)


class Modes:
    """Watches the modes of a model's norms and dropouts from the first step that it sees."""

    def __init__(self) -> None:
        self._awake: set[str] | None = None
        self._has_seen_copies = False

    def see(self, modules: Mapping[str, nn.Module], step: int) -> list[Finding]:
        """Return what is wrong with the modules at an optimizer step since the first one; each fault once."""
        if self._awake is None:
            self._awake = {name for name, module in _trained_with_modes(modules).items() if module.training}
            return []
        return [*self._left_in_evaluation(modules, step), *self._without_statistics(modules)]

    def _left_in_evaluation(self, modules: Mapping[str, nn.Module], step: int) -> Iterator[Finding]:
        """Yield an alarm if all that were in training mode are in evaluation mode while the model trains."""
        there = list[str]()
        for name in self._awake or ():
            # What has been frozen since is in evaluation mode on purpose.
            if name in modules and _is_with_mode(modules[name]) and not _is_frozen_at(name, modules):
                if modules[name].training or modules[name.rpartition(".")[0]].training:
                    return  # where only the norms are in evaluation mode, someone has frozen their statistics
                there.append(name)
        if not there:
            return
        self._awake = set()
        kinds = sorted({type(modules[name]).__name__ for name in there})
        yield Finding(
            "",
            f"the layers that behave differently in training ({', '.join(kinds)}) were in training mode at the first "
            f"step and are in evaluation mode at step {step}: {listed(sorted(there), 3)}",
            "call train() after each evaluation",
            "alarm",
            is_hard=False,
            rule="eval_mode",
        )

    def _without_statistics(self, modules: Mapping[str, nn.Module]) -> Iterator[Finding]:
        """Yield an alarm if frozen batch norms have others' weights, but no statistics: a teacher without buffers."""
        norms = {name: one for name, one in modules.items() if isinstance(one, BATCH_NORMS) and not one.training}
        new = [name for name, norm in norms.items() if _is_frozen(norm) and _is_new(norm) and _has_moved(norm)]
        if new and not self._has_seen_copies:
            self._has_seen_copies = True
            frozen = sum(isinstance(one, BATCH_NORMS) and _is_frozen(one) for one in modules.values())
            yield Finding(
                new[0],
                f"in {len(new)} of {frozen} batch normalization layers in frozen modules, the running statistics "
                f"are still at their initial values, but the weights are not: {listed(new, 3)}",
                "copy the buffers too, as torch.optim.swa_utils.AveragedModel does with use_buffers=True",
                "alarm",
                rule="eval_mode",
            )


def _has_moved(norm: nn.Module) -> bool:
    weight = getattr(norm, "weight", None)
    return weight is not None and not bool((weight == weight[0]).all())  # all 1, or all 0 at the end of a block


def _is_new(module: nn.Module) -> bool:
    """Return True for a batch norm whose running statistics are a mean of 0 and a variance of 1."""
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    return mean is not None and variance is not None and not mean.any() and bool((variance == 1).all())


def _still_statistics(model: nn.Module) -> Iterator[Finding]:
    """Yield an alarm if batch norms have a momentum of 0, and running statistics as torch initializes them."""
    norms = {name: norm for name, norm in modules_in(model).items() if isinstance(norm, BATCH_NORMS)}
    still = [name for name, norm in norms.items() if norm.training and norm.momentum == 0 and _is_new(norm)]
    if still:
        yield Finding(
            still[0],
            f"momentum=0 in {len(still)} of {len(norms)} batch normalization layers keeps the running statistics, "
            f"which evaluation uses, at a mean of 0 and a variance of 1: {listed(still, 3)}",
            "set momentum=0.1; in torch, momentum is the weight of each new batch; in other libraries, it is the "
            "fraction that is kept",
            "alarm",
        )


DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})

HEAVY_SHARE = 0.9
"""Share of values that a dropout must drop to be an alarm: 0.5 is usual, 0.8 the largest in use."""


def dropout(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for the dropouts that drop HEAVY_SHARE of the values or more, but not all."""
    shares = ((op, _dropped(op)) for op in done.step.ops)
    heavy = {str(op.place): (op, share) for op, share in shares if HEAVY_SHARE <= share < 1}
    if heavy:
        op, share = next(iter(heavy.values()))
        yield Finding(
            op.place.module,
            f"{op.name} {listed(list(heavy), 3)} drops {share:.0%} of the values, and scales the rest by "
            f"{1 / (1 - share):.3g}: p is the probability of dropping a value, not of keeping it",
            f"set p={1 - share:.2g}, or at most 0.5",
            "alarm",
            is_hard=op.inputs[0].of_parameters,  # data are masked by as much on purpose
        )


DROPOUT = Rule("dropout", dropout, of="step", gives="alarm")


def _dropped(op: Op) -> float:
    """Return the share of values that a call drops; 0 for other functions and where it is switched off."""
    if op.name not in DROPOUTS:
        return 0.0
    share = op.arguments.get("p", op.arguments.get("1", 0.5))
    is_on = op.arguments.get("training", op.arguments.get("2", True))
    return float(share) if is_on and isinstance(share, int | float) else 0.0
