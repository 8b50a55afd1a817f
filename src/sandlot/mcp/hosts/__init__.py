"""Sandboxes that the MCP server works with: those of a service through the SDK, or those of the node itself."""
