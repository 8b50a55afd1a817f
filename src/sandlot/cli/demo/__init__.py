"""The demo of ``sandlot demo``; ``scripted_agent`` stands in for a model."""
