"""A release and its certificate on their way out, atomically, and back in. It never sees true counts."""
