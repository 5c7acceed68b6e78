"""Misra-Gries sketches of streams: at most k counters, ready for a private release.

A sketch holds true counts. In memory and as a file, it is as secret as the events it was built from.
"""

from dphist.sketch.build import build, build_batches, build_on_spark
from dphist.sketch.misra_gries import MisraGries

__all__ = ["MisraGries", "build", "build_batches", "build_on_spark"]
