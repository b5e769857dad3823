"""One partition on disk, in Kafka's own file formats.

`log.Log` is the whole of it. Around it: `segment` and `index` are a segment's files, `reading` and
`lookup` find batches in them; `rolling`, `writing`, `truncation` and `closing` are the steps by
which the files grow, shrink and come to rest. `producer_state` and `epochs` are what a log
remembers about its writers, `loading` and `recovery` open one. `handles` bounds open files,
`checkpoints` and `directory` are the files beside the partitions. `inspection` looks through all of
them without a broker, together with `walk`, `partition_check`, `index_check` and `findings`.
"""
