"""The control records at the two ends of a snapshot of the metadata log (KIP-630)."""

from ottla.wire.schema import INT16, INT64, Message, field


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    version: int = field(INT16)
    last_contained_log_timestamp: int = field(INT64)


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    version: int = field(INT16)
