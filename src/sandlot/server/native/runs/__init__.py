"""What runs in a sandbox, over HTTP: code in contexts."""
