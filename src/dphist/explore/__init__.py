"""The local page of `dphist explore`: all arithmetic is the library's, and no data is read but uploaded counts."""
