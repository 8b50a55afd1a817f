"""Code in the contexts of a sandbox."""
