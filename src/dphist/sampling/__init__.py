"""Secure randomness and exact discrete noise."""

from dphist.sampling.sampler import DiscreteGaussian, DiscreteLaplace, ExactSampler, MoreWords
from dphist.sampling.tap import SecureTap, SeededTap, Tap

__all__ = ["DiscreteGaussian", "DiscreteLaplace", "ExactSampler", "MoreWords", "SecureTap", "SeededTap", "Tap"]
