"""The isolation seam: what makes, limits and ends a sandbox. One registry, one room per family of runtimes."""
