"""E2B's code interpreter: code that keeps its variables, told as it runs, and the contexts that it runs in."""
