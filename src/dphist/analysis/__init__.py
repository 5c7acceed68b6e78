"""Pure privacy analysis, numbers in and numbers out: one file per source. No randomness, no I/O."""
