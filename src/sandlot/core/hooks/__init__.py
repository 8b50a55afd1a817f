"""Webhooks: who is told of what happens, wherever they are."""
