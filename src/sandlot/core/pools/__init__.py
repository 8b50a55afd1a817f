"""Pools of warm and prepared sandboxes, which are started before a create request needs them, and snapshots of templates."""
