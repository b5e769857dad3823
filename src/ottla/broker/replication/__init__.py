"""Copies of what other nodes lead, and who of our own followers is in sync."""
