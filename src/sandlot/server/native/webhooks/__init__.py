"""Webhooks of the native API."""
