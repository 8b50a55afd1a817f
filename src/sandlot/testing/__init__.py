"""Shipped suites that a third party's driver must pass, so that it behaves like Sandlot's own.

Needs pytest with anyio's plugin, which Sandlot itself does not install. Use it from a test module of yours::

    import pytest
    from sandlot.testing.bench import Bench
    from sandlot.testing.driver_suite import DriverSuite

    pytest.register_assert_rewrite("sandlot.testing")  # before the imports above, for telling failures


    class TestMine(DriverSuite):
        @pytest.fixture
        def bench(self, tmp_path):
            return Bench("mine", root=..., node=new_node_id(), data_dir=tmp_path)

Behaviours ask for abilities, never for names: one whose ability the driver's probe denies is skipped with the probe's reason.
"""
