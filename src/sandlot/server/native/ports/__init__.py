"""Ports of programs inside, reached from outside."""
