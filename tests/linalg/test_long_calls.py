"""Long calls are left by Ctrl-C while they run, and give what short ones give."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from dpsql.linalg import long_calls
from dpsql.linalg.long_calls import eigh, interruptible, product

LONG = 1e12


@pytest.fixture
def _handled() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_handled")
def test_ctrl_c_does_not_wait_for_a_long_call() -> None:
    leave, left = threading.Event(), threading.Event()

    def call() -> int:
        _thread.interrupt_main()
        leave.wait()
        left.set()
        return 1

    with pytest.raises(KeyboardInterrupt):
        interruptible(call, LONG)
    assert not left.is_set()
    leave.set()
    assert left.wait(10)


def test_short_calls_and_those_of_other_threads_have_no_thread_of_their_own() -> None:
    def here() -> threading.Thread:
        return threading.current_thread()

    assert interruptible(here, 1.0) is threading.main_thread()
    assert interruptible(here, LONG) is not threading.main_thread()
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(interruptible(here, LONG) is threading.current_thread()))
    other.start()
    other.join()
    assert found == [True]


def test_what_a_long_call_raises_is_raised_and_its_settings_are_those_outside() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        interruptible(lambda: np.linalg.cholesky(-np.eye(2)), LONG)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        interruptible(lambda: np.ones(2) / np.zeros(2), LONG)


def test_long_and_short_decompositions_and_products_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    A, B = random.standard_normal((40, 30)), random.standard_normal((30, 20))
    S = A @ A.T
    short = eigh(S), product(A, B)
    monkeypatch.setattr(long_calls, "_SHORT", 0.0)
    (values, vectors), made = eigh(S), product(A, B)
    assert np.allclose(values, short[0][0])
    assert np.allclose(vectors * values @ vectors.T, S)
    assert np.array_equal(made, short[1])
