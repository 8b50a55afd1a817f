"""What runs write, as it is logged, read back and followed."""
