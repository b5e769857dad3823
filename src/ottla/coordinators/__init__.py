"""Groups, offsets and (later) transactions: pure deciders, persisted by the broker's runtime."""
