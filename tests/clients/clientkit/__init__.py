"""What the client tests stand on: the catalog of clients, their builds, and the driver."""
