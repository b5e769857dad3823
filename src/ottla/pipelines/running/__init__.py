"""A run: flows, their checkpoints, attempts and reports."""
