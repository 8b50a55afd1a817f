"""Suites that a third-party store or blob store must pass, so that Sandlot's core can use it (docs/how-to/write-a-store.md).

Use them in a test module::

    import pytest

    pytest.register_assert_rewrite("sandlot.testing")  # before the imports below, for detailed failure messages

    from sandlot.testing.stores.harness import StoreHarness
    from sandlot.testing.stores.suite import DurabilitySuite, StoreSuite, StreamedBlobsSuite


    class TestMyStore(StoreSuite, DurabilitySuite):
        @pytest.fixture
        def harness(self, tmp_path):
            return StoreHarness("mystore.store:open_store", str(tmp_path / "rows"))


    class TestMyBlobs(StreamedBlobsSuite):
        @pytest.fixture
        async def blobs(self, tmp_path):
            return await open_blobs(tmp_path / "files")

For a store that loses its data when its process ends, leave out ``DurabilitySuite``. The fixture ``harness`` may then return any ``StoreOpener``.
For a blob store that keeps its blobs in memory, use ``BlobsSuite`` instead of ``StreamedBlobsSuite``.
"""
