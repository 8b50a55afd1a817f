"""Runs that are begun again."""
