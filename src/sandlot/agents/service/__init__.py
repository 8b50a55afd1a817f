"""Agents that a service runs: it calls the models that the operator has configured, and their tools in sandboxes."""
