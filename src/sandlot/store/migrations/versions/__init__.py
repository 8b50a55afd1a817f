"""Migration steps. Each module is one step; the number in its name is its place in the order."""
