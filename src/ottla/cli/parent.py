"""Ending when the process that started us ends, whatever way it goes."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading


def end_with_parent() -> None:
    """Asks ourselves to stop once the parent is gone.

    A pipe on stdin is the best sign: its end comes on every system, and not, as with Linux'
    death signal, already when the parent's thread that started us ends.
    """
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_stop_at_end_of_stdin, name="parent", daemon=True).start()
    elif sys.platform == "linux":
        _ask_for_death_signal()


def _stop_at_end_of_stdin() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _ask_for_death_signal() -> None:
    import ctypes

    parent = os.getppid()
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != parent:  # It went while we were asking.
        os.kill(os.getpid(), signal.SIGTERM)
