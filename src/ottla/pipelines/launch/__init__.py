"""How a pipeline gets its Spark."""
