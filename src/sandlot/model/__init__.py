"""The words of Sandlot: ids, errors, specs, states, and the ports that drivers fill.

Frozen values and pure functions; no I/O. Every other room speaks in these terms.
"""
