"""Webhooks: events sent to URLs."""
