"""Package registries: one module for the paths of each registry, and modules that read and write its index format."""
