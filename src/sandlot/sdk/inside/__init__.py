"""What happens inside a sandbox, as the service tells it."""
