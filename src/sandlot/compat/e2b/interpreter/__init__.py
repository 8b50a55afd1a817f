"""E2B's code interpreter: code that keeps its variables and streams its results, and the contexts in which it runs."""
