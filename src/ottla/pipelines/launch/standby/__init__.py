"""A Spark that stands by: started ahead, used by one command, gone then (ADR 0012)."""
