"""What is in a sandbox: its files, whole trees of them, and what changes among them."""
