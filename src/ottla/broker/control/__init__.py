"""What decides, at work: the metadata, its controller and its snapshots, groups and topics."""
