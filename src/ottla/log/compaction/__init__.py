"""Compaction: the last value of each key stays.

`choice` says which log needs it and how much of that log may be touched, `job` is what the process
that does it is told. There `rewrite` reads the log twice, with `key_map`, `records` and
`transactions`, and writes new segments beside the old (`output`). `swap` puts them in their place.
"""
