"""Values that all packages use: ids, errors, specs, states and records, and the protocols of drivers and stores.

The values are frozen and the functions are pure. Nothing here does I/O.
"""
