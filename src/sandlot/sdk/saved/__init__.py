"""What is kept of sandboxes, and what came of one another."""
