"""Pipelines: a YAML file for the plumbing, SQL for the logic, run on Spark."""
