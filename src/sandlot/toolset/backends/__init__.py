"""Sandboxes that the tools work in: through the SDK, or on the node itself."""
