"""What the service tells its operators."""
