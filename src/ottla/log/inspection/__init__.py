"""Looking through files without believing them.

`inspection` is all that `ottla log verify` does, without a broker: `walk` goes over the bytes of a
file, `partition_check` and `index_check` hold the files of a partition against each other, and
`findings` are what comes out. `scrub` reads the logs of a running broker, slowly.
"""
