"""Suites that a third-party driver must pass, so that it behaves like Sandlot's own drivers (docs/how-to/write-a-driver.md).

Use them in a test module::

    import pytest

    pytest.register_assert_rewrite("sandlot.testing")  # before the imports below, for detailed failure messages

    from sandlot.model.ids import new_node_id
    from sandlot.testing.drivers.harness import DriverHarness
    from sandlot.testing.drivers.suite import DriverSuite


    class TestMyDriver(DriverSuite):
        @pytest.fixture
        def harness(self, tmp_path):
            return DriverHarness("mydriver", root=..., node=new_node_id(), data_dir=tmp_path)

A test that needs an optional capability is skipped if the driver's probe reports that the capability is missing; the skip shows the probe's reason.
Use ``DriverSuiteWithoutSnapshots`` for a driver that does not support snapshots. For a driver that starts no real sandboxes, use only the
suites of the module ``contract``.

The suites run as root and start real sandboxes. In addition to the protocols of :mod:`sandlot.model.ports`, they require of a driver:

- The files of a sandbox are in a folder of ``data_dir/sandboxes``. The folder is gone when ``destroy`` has returned.
- Every cgroup, process, mount and loop device of a sandbox can be found by the path of the state directory or by the node id, and ``destroy``
  removes them all. ``leftovers`` searches by these two only.
- The files of a snapshot are readable by root only (modes 0600 and 0700). The reported size of a snapshot is the disk space that its files use.
- A snapshot whose files are damaged is refused by ``restorable``, ``prepare`` and ``restore`` with the same reason.
"""
