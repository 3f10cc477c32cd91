"""One wish to end, however often it arrives at once, starts one drain; a later one ends at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.lifecycle.stop import WINDOW_S, SignalCounter, Stopper, watch_parent

ROOT = Path(__file__).resolve().parents[3]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=6).map(sorted))
def test_signals_within_the_window_of_the_first_count_once(times: list[float]) -> None:
    counter = SignalCounter()
    actions = [counter.press(t) for t in times]
    assert actions[0] == "drain"
    for t, action in zip(times[1:], actions[1:], strict=True):
        assert action == ("same" if t - times[0] < WINDOW_S else "now")


def test_stop_wakes_at_once_and_again_when_patience_ends() -> None:
    woken: list[bool] = []
    stopper = Stopper()
    stopper.stop()
    stopper.on_stop(lambda: woken.append(stopper.patient))
    stopper.stop(patient=False)
    stopper.stop()
    assert woken == [True, False, False]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_signals_are_taken_over_but_ignored_ones_stay_ignored() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    ended: list[bool] = []
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        stopper = Stopper(end_now=lambda: ended.append(True))
        stopper.install()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopper.wanted and stopper.patient and not ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_later_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((10.0, 10.001, 10.0 + WINDOW_S))
    monkeypatch.setattr("server.lifecycle.stop.time.monotonic", lambda: next(now))
    ended: list[bool] = []
    stopper = Stopper(end_now=lambda: ended.append(True))
    stopper._handle(signal.SIGINT, None)
    stopper._handle(signal.SIGINT, None)
    assert not ended
    stopper._handle(signal.SIGTERM, None)
    assert ended == [True]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")
@pytest.mark.parametrize("portable", [False, True])
def test_a_killed_parent_is_noticed(portable: bool) -> None:
    """A parent starts a child that watches it; the parent is killed; the child says so on the pipe that both inherited."""
    child = (
        "import os, sys, time; sys.path.insert(0, sys.argv[1])\n"
        f"if {portable}: vars(os).pop('pidfd_open', None)\n"
        "from server.lifecycle.stop import watch_parent\n"
        "watch_parent(lambda: (os.write(1, b'lost'), os._exit(0)), interval_s=0.05)\n"
        "os.write(1, b'ready ')\n"
        "time.sleep(60)\n"
    )
    parent = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]]); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", parent, child, str(ROOT)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as pipe:
        assert os.read(pipe.fileno(), 6) == b"ready "
        process.kill()
        process.wait()
        assert pipe.read() == b"lost"


def test_a_living_parent_is_not_reported_lost() -> None:
    lost = threading.Event()
    watch_parent(lost.set, interval_s=0.01)
    assert not lost.wait(0.2)
