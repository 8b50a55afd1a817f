"""Warm and prepared sandboxes that are made before a request needs them, and template snapshots."""
