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
def merge_all(rows: int, owner: int, count: int, owners: int, /) -> bytearray: ...
