"""Resources of a node: drivers and templates, reservations, and the steps that start sandboxes and release resources."""
