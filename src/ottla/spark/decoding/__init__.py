"""Record batches of a fetch become Arrow batches, in bulk."""
