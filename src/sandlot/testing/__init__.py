"""Test suites for third-party drivers and stores, and in-memory implementations for tests of code above them.

- :mod:`sandlot.testing.drivers`: suites for drivers.
- :mod:`sandlot.testing.stores`: suites for stores and blob stores.
- :mod:`sandlot.testing.guest_suite`: suite for guests. Sandlot's guest passes it on every driver, and the scripted guest passes it too.
- :mod:`sandlot.testing.memory`: driver, scripted guest and store in memory, with faults on demand. They pass the suites.

The suites need pytest with the plugin of anyio, which Sandlot does not install.
"""
