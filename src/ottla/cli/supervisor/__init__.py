"""`ottla cluster`: several nodes on this machine, started, watched and asked together."""
