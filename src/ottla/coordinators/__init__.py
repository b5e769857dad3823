"""Groups, offsets and transactions: pure deciders, persisted by the broker's runtime."""
