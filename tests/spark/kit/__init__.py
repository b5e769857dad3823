"""Helpers of the tests with a real Spark."""
