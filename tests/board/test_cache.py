import threading
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what TensorBoard comes with
    from hookboard.board.board import Cache


def never():
    raise AssertionError("made a second time")


def test_what_is_kept_is_not_made_again_in_this_version():
    cache = Cache()
    assert cache.get("a", 1, lambda: "made") == "made"
    assert cache.get("a", 1, never) == "made"
    assert cache.get("a", 2, lambda: "new") == "new"


def test_a_value_that_could_not_be_made_is_made_at_the_next_request():
    cache = Cache()
    with pytest.raises(AssertionError):
        cache.get("a", 1, never)
    assert cache.get("a", 1, lambda: "made") == "made"


def test_what_makes_a_value_may_get_another_from_the_cache():
    cache = Cache()
    assert cache.get("a", 1, lambda: cache.get("b", 1, lambda: "b") + "a") == "ba"
    assert cache.get("b", 1, never) == "b"


def test_threads_wait_for_the_one_that_makes_a_value():
    cache, may_go_on, made, found = Cache(), threading.Event(), [], []

    def make():
        made.append("a")
        assert may_go_on.wait(10)
        return "a"

    threads = [threading.Thread(target=lambda: found.append(cache.get("a", 1, make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    may_go_on.set()
    for thread in threads:
        thread.join()
    assert (made, found) == (["a"], 4 * ["a"])
