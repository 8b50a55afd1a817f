"""Suites that a third-party driver must pass, so that it behaves like Sandlot's own drivers.

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
A driver without snapshots uses ``DriverSuiteWithoutSnapshots``.
"""
