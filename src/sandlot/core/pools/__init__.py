"""Snapshots of templates, and pools of sandboxes that are warmed or prepared before a create request needs them."""
