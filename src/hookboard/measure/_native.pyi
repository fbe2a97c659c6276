def measure_into(
    address: int,
    minus: int,
    counts: int,
    rows: int,
    is_fresh: bool,
    threads: int,
    form: tuple[int, int, int, int, int, int, bool],
    /,
) -> None: ...
