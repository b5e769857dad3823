"""One partition on disk, in Kafka's own file formats.

`log.Log` is the whole of it, and `view.LogView` what its readers use. Around them: `segment` and
`index` are a segment's files, `chain` is the row of segments, `reading` and `lookup` find batches
in them; `rolling`, `writing`, `truncation` and `closing` are the steps by which the files grow,
shrink and come to rest, `intake` is what a follower takes of its leader's bytes, `hints` spare
recovery its reading. `producer_state` and `epochs` are what a log remembers about its writers.
`handles` bounds open files, `unsynced` knows which of them a crash could take back, `checkpoints`
and `directory` are the files beside the partitions.

`opening/`, `compaction/` and `inspection/` are rooms of their own.
"""
