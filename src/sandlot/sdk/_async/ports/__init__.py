"""Ports of programs inside, reached from here."""
