"""Previews: a listener that forwards HTTP requests to servers inside sandboxes."""
