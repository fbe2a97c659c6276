import threading
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what TensorBoard comes with
    from hookboard.board.board import Cache


def filled(cache, key, value, size=10, version=1):
    return cache.get(key, version, lambda: value, lambda _: size)


def never():
    raise AssertionError("made a second time")


def test_what_is_kept_is_not_made_again():
    cache = Cache(100)
    filled(cache, "a", "made")
    assert cache.get("a", 1, never, len) == "made"


def test_a_new_version_takes_the_place_of_the_old_one():
    cache = Cache(100)
    filled(cache, "a", "old")
    assert filled(cache, "a", "new", 20, version=2) == "new"
    assert cache.bytes == 20


def test_what_was_asked_for_longest_ago_is_dropped_first():
    cache = Cache(30)
    for key in "abc":
        filled(cache, key, key)
    filled(cache, "a", "again")
    filled(cache, "d", "d")
    assert cache.bytes == 30
    assert filled(cache, "a", "made anew") == "a"
    assert filled(cache, "b", "made anew") == "made anew"


def test_what_is_larger_than_the_cache_is_not_kept():
    cache = Cache(30)
    filled(cache, "a", "a")
    assert filled(cache, "b", "large", 31) == "large"
    assert cache.bytes == 10


def test_a_value_that_could_not_be_made_is_made_at_the_next_request():
    cache = Cache(30)
    with pytest.raises(AssertionError):
        cache.get("a", 1, never, len)
    assert filled(cache, "a", "made") == "made"


def test_what_makes_a_value_may_get_another_from_the_cache():
    cache = Cache(25)
    assert cache.get("a", 1, lambda: filled(cache, "b", "b") + "a", lambda _: 10) == "ba"
    assert (filled(cache, "b", "made anew"), cache.bytes) == ("b", 20)


def test_threads_wait_for_the_one_that_makes_a_value():
    cache, may_go_on, made, found = Cache(100), threading.Event(), [], []

    def make():
        made.append("a")
        assert may_go_on.wait(10)
        return "a"

    threads = [threading.Thread(target=lambda: found.append(cache.get("a", 1, make, lambda _: 10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    may_go_on.set()
    for thread in threads:
        thread.join()
    assert (made, found) == (["a"], 4 * ["a"])
