"""Linear algebra takes one thread while a plan is made, and what it took before afterwards."""

from __future__ import annotations

import sys
import threading

import pytest

from dpsql.common import one_thread as module
from dpsql.common.one_thread import one_thread
from dpsql.planning import plan


def numbers() -> list[int]:
    return [get() for get, _ in module._libraries()]


@pytest.fixture(autouse=True)
def two_threads() -> None:
    for _, put in module._libraries():
        put(2)


@pytest.mark.skipif(sys.platform != "linux", reason="wheels of other platforms bring other libraries along")
def test_the_libraries_of_numpy_and_scipy_are_found() -> None:
    assert len(module._libraries()) == 2


def test_one_thread_inside_and_as_before_afterwards() -> None:
    with one_thread():
        assert set(numbers()) == {1}
        with one_thread():
            assert set(numbers()) == {1}
        assert set(numbers()) == {1}
    assert set(numbers()) == {2}


def test_an_error_puts_the_number_back() -> None:
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert set(numbers()) == {2}


def test_plans_of_several_threads_share_it() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with one_thread():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with one_thread():
        thread.start()
        inside.wait()
    assert set(numbers()) == {1}
    leave.set()
    thread.join()
    assert set(numbers()) == {2}


def test_a_file_that_is_no_library_is_passed_over(tmp_path: object) -> None:
    file = module.Path(str(tmp_path)) / "libopenblas.so"
    file.write_text("none")
    assert module._threads(file) is None


def test_plans_are_made_so() -> None:
    """The decorator stands around the function that makes plans."""
    assert plan.make_plan.__wrapped__.__name__ == "make_plan"  # type: ignore[attr-defined]
