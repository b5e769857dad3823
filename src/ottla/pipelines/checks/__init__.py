"""What can be known about a pipeline before it runs."""
