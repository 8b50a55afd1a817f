"""Test suites for third-party drivers and stores, and in-memory drivers, guests and stores for tests of code that uses them.

- :mod:`sandlot.testing.drivers`: suites for drivers.
- :mod:`sandlot.testing.stores`: suites for stores and blob stores.
- :mod:`sandlot.testing.guest_suite`: suite for guests. Sandlot's own guest passes it on every driver; the scripted in-memory guest passes it too.
- :mod:`sandlot.testing.memory`: in-memory driver, scripted guest and store, which pass these suites. A test can make any of their operations fail.

The suites need pytest, which Sandlot does not install, and the pytest plugin that anyio contains.
"""
