"""How Spark on this machine starts its Pythons sooner."""
