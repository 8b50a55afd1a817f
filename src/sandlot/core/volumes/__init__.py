"""Volumes: files that outlive the sandboxes that have them."""
