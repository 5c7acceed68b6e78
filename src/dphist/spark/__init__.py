"""The engine Spark: executors count and add noise, and only released rows leave the cluster."""
