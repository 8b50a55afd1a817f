"""One-shot runs: programs that each run once in a sandbox of their own and are graded, one or many at a time."""
