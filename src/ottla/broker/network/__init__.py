"""From the socket to a handler and back: connections, the router, what waits."""
