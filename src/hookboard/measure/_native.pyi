from torch import Tensor

def measure(
    address: int,
    minus: int,
    type: int,
    outer: int,
    channels: int,
    inner: int,
    apart: int,
    with_abs_mean: bool,
    counts: int,
    threads: int,
    /,
) -> tuple[list[float] | None, bytearray | None]: ...
def measure_all(
    tensors: list[tuple[int, int, int, int, int, int, int]], with_abs_mean: bool, threads: int, /
) -> tuple[bytearray, bytearray]: ...
def merge_all(rows: int, owner: int, count: int, owners: int, /) -> bytearray: ...
def find_view(tensor: type, parameter: type, /) -> bool: ...
def is_like(tensor: object, key: bytes, /) -> bool: ...
def are_finite(whole: list[Tensor], columns: list[Tensor], /) -> bool: ...
