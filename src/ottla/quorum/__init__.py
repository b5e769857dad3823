"""Who may write the metadata log: votes and epochs, pure."""
