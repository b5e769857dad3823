"""Opening a log.

`listing` is what lies in its directory, `loading` believes it after a clean stop, `recovery`
checks it after a crash. `swaps` completes compactions that a crash interrupted, `short_logs` is
what a clean stop has told of many small logs in one file.
"""
