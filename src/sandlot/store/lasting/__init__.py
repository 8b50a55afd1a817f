"""What outlives sandboxes, and is in the state directory of its node."""
