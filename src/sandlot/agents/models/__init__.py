"""Models of the agent loop: one module per protocol, on a client that the caller has."""
