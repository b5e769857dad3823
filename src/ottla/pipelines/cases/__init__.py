"""The tests in a pipeline's own file."""
