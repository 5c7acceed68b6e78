"""Exact discrete noise from one tap of randomness. Knows nothing of privacy; the tap is passed in."""

from dphist.sampling.rejection import MoreWords
from dphist.sampling.sampler import DiscreteGaussian, DiscreteLaplace, ExactSampler
from dphist.sampling.tap import SecureTap, SeededTap, Tap

__all__ = ["DiscreteGaussian", "DiscreteLaplace", "ExactSampler", "MoreWords", "SecureTap", "SeededTap", "Tap"]
