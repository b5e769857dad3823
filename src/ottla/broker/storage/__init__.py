"""Partitions and what becomes of their files: group commit, retention, compaction, scrubbing."""
