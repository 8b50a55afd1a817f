"""Files of running sandboxes, and the file store."""
