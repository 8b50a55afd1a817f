"""What runs in a sandbox: processes and cells, followed or left alone, and what they gave."""
