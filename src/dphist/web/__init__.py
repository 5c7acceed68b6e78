"""The page of `dphist explore`: thin, all arithmetic is the library's. It reads no data but uploaded counts."""
