"""`RefusalError`: why a request cannot be answered, in one sentence for who asked."""

from collections.abc import Iterable

from hookboard.messages import unknown


class RefusalError(ValueError):
    """The request is wrong; the text says what was given and what is valid.

    Args:
        text: one sentence.
        code: the HTTP status.
    """

    def __init__(self, text: str, code: int = 400) -> None:
        super().__init__(text)
        self.code = code


def no_such(kind: str, given: str, valid: Iterable[str]) -> RefusalError:
    """The refusal of a name that does not exist.

    >>> no_such("run", "lightnin_logs", ["lightning_logs"])
    RefusalError("unknown run 'lightnin_logs'; did you mean 'lightning_logs'? Valid: lightning_logs.")
    """
    return RefusalError(str(unknown(kind, given, valid)), 404)
