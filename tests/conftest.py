"""Shared settings: examples are drawn the same way on every machine, and no test is timed."""

from __future__ import annotations

import os

import hypothesis

# One thread a test process: two of them run side by side, and numpy's own threads would fight them.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

hypothesis.settings.register_profile("dphist", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("dphist")
