"""Shared settings: examples are drawn the same way on every machine, and no test is timed."""

from __future__ import annotations

import os
import signal
import threading

import hypothesis

# One thread a test process: two of them run side by side, and numpy's own threads would fight them.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

hypothesis.settings.register_profile("dphist", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("dphist")

# A shell starts background jobs with interrupts ignored, and their children inherit it: tests send real ones.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
