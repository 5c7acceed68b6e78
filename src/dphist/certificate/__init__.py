"""The certificate of a release: its schema, its canonical text, its sentences, and `verify`."""
