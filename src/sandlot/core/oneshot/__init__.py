"""Programs that are run once, each in a sandbox of its own, and graded: one, or many at a time."""
