"""API keys, quotas and idempotency."""
