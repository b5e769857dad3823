"""Arrow batches of Spark become record batches, in bulk."""
