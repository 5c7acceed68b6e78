"""Secure randomness and exact discrete noise."""

from dphist.sampling.rng import Rng, SecureRng, SeededRng
from dphist.sampling.sampler import DiscreteGaussian, DiscreteLaplace, ExactSampler, MoreWords

__all__ = ["DiscreteGaussian", "DiscreteLaplace", "ExactSampler", "MoreWords", "Rng", "SecureRng", "SeededRng"]
