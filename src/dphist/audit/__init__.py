"""Mechanisms put to the test: the conformance suite, and attacks that bound delta from below."""
