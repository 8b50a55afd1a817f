"""Programs: each runs once in its own sandbox, and its output is graded. A batch has many programs."""
