"""A small asynchronous client on raw record batches, for Spark and for the brokers themselves."""
