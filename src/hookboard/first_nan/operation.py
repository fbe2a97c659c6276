"""`OperationSearch`: finds the torch function call that produced the NaN or Inf of a loss, with file and line."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hookboard.nested import tensors_in
from hookboard.user_code import user_frame

_ROOTS = frozenset({"sqrt", "rsqrt", "pow"})
_DIVISIONS = frozenset({"div", "divide", "truediv", "true_divide", "reciprocal"})
_LOGARITHMS = frozenset({"log", "log2", "log10", "log1p"})
_SOFTMAXES = frozenset({"softmax", "log_softmax", "logsumexp"})
_ATTENTIONS = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})


@dataclass(frozen=True)
class Operation:
    """A function call whose output has a NaN or Inf although its inputs had none.

    Args:
        name: of the function, such as `softmax`.
        line: file and line of the user's code that called it, such as `model.py:31`; "" if there is none.
        why: what was wrong with its input, as a clause; "" if that is not known.
        advice: what to change; "" if that is not known.
    """

    name: str
    line: str
    why: str
    advice: str

    @property
    def where(self) -> str:
        """The function, and the line that called it if known: `softmax() at model.py:31`."""
        return f"{self.name}() at {self.line}" if self.line else f"{self.name}()"


class OperationSearch(TorchFunctionMode):
    """A context that records for each NaN or Inf tensor which torch function call produced it.

    That is the call whose output has a NaN or Inf although no input has one. A softmax or attention may get -Inf from a
    mask: it is the origin of a NaN in its output unless an input has a NaN. Each call waits for the device.
    """

    def __init__(self) -> None:
        super().__init__()
        # By id: a tensor that is not finite (kept, so that no other gets its id), whether it has a NaN, its origin.
        self._bad: dict[int, tuple[Tensor, bool, Operation]] = {}

    def origin_of(self, loss: Tensor) -> Operation | None:
        """Return the call that produced the NaN or Inf of a loss; None if no recorded call did, or it is finite."""
        found = self._bad.get(id(loss))
        return None if found is None else found[2]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and record the origin of each output that is not finite."""
        kwargs = kwargs or {}
        given = [tensor for _, tensor in tensors_in((args, kwargs))]
        taken = [self._bad[id(tensor)] for tensor in given if id(tensor) in self._bad]
        name = getattr(func, "__name__", "").strip("_")
        is_in_place = name == "setitem" or getattr(func, "__name__", "").endswith("_")
        before = [tensor.detach().clone() for tensor in given] if is_in_place else given
        returned = func(*args, **kwargs)
        for tensor in [args[0]] if name == "setitem" else [tensor for _, tensor in tensors_in(returned)]:
            self._bad.pop(id(tensor), None)
            if not (isinstance(tensor, Tensor) and tensor.is_floating_point()) or _is_finite(tensor):
                continue
            has_nan = bool(torch.isnan(tensor.detach()).any())
            # Masks give -Inf to a softmax on purpose; other functions pass on the NaN or Inf that they get.
            takes_masks = name in _SOFTMAXES | _ATTENTIONS
            origin = next((operation for _, was_nan, operation in taken if was_nan or not takes_masks), None)
            self._bad[id(tensor)] = tensor, has_nan, origin or _operation(name, before, args, kwargs)
        return returned


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())


def _operation(name: str, given: Sequence[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Operation:
    try:
        why, advice = _cause(name, given, args, kwargs)
    except Exception:  # a tensor of an odd kind
        why, advice = "", ""
    return Operation(name, _line(), why, advice)


def _cause(name: str, given: Sequence[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is wrong with the inputs of a call, as a clause, and what to change; each "" if it is not known."""
    first = given[0].detach() if given else torch.empty(0, device="cpu")
    if name in _SOFTMAXES | _ATTENTIONS:
        return _cause_of_masked_rows(_masked_rows(name, first, args, kwargs))
    if name in _DIVISIONS:
        number = kwargs.get("other", args[1] if len(args) > 1 else None)
        divisor = given[1].detach() if len(given) > 1 else number if isinstance(number, int | float) else first
        zeros = int(divisor == 0) if isinstance(divisor, int | float) else int((divisor == 0).sum())
        advice = "Add an epsilon to the divisor, or leave these values out." if zeros else ""
        return _counted(zeros, "of its divisors", "0"), advice
    if name in _LOGARITHMS:
        least = -1 if name == "log1p" else 0
        low = _counted(int((first <= least).sum()), f"of its {first.numel()} inputs", f"{least} or less")
        return low, "Clamp its input above 0."
    if name in _ROOTS:
        low = _counted(int((first <= 0).sum()), f"of its {first.numel()} inputs", "0 or less")
        return low, "Clamp its input above 0, or check the power."
    if name == "exp" and first.numel():
        advice = "Subtract the maximum first, or clamp its input; as an activation, use ReLU or GELU in place of it."
        return f"its input goes up to {first.max().item():.3g}", advice
    return "", ""


def _counted(count: int, what: str, value: str) -> str:
    """Return a clause such as "2 of its 8 inputs are 0 or less"; "" for a count of 0."""
    return f"{count} {what} {'is' if count == 1 else 'are'} {value}" if count else ""


def _cause_of_masked_rows(count: int) -> tuple[str, str]:
    if not count:
        return "", ""
    rows = "1 row is" if count == 1 else f"{count} rows are"
    return f"{rows} masked throughout", "Let each row see at least one place, or leave rows without any out."


def _masked_rows(name: str, first: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the number of rows that are -Inf along the axis of a softmax, or hidden by the mask of an attention."""
    if name in _SOFTMAXES:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        return int((first == -torch.inf).all(dim if isinstance(dim, int | tuple) else -1).sum())
    masks = [kwargs.get("attn_mask"), kwargs.get("key_padding_mask")]
    if name == "scaled_dot_product_attention" and len(args) > 3:
        masks[0] = args[3]
    lets_through = name == "scaled_dot_product_attention"  # True in its mask; elsewhere True hides
    known = [mask.detach() for mask in masks if isinstance(mask, Tensor)]
    hidden = [mask != lets_through if mask.dtype is torch.bool else mask == -torch.inf for mask in known]
    return max((int(mask.all(-1).sum()) for mask in hidden), default=0)


def _line() -> str:
    """Return file and line of the innermost frame of the user's code, such as "model.py:31"; "" if there is none."""
    frame = user_frame(inspect.currentframe())
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
