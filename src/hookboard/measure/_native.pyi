def measure(
    address: int, type: int, count: int, with_abs_mean: bool, counts: int, threads: int, /
) -> list[float] | None: ...
def measure_channels(
    address: int,
    type: int,
    outer: int,
    channels: int,
    inner: int,
    with_abs_mean: bool,
    counts: int,
    threads: int,
    /,
) -> tuple[list[float] | None, bytearray]: ...
def measure_all(
    tensors: list[tuple[int, int, int, int, int, int, int]], with_abs_mean: bool, threads: int, /
) -> tuple[bytearray, bytearray]: ...
