"""Shipped suites that a third party's store, or blobs, must pass.

Use them from a test module, like the suite of a driver (:mod:`sandlot.testing`)::

    class TestMine(StoreSuite, DurabilitySuite):
        @pytest.fixture
        def bench(self, tmp_path):
            return StoreBench("mine.store:open_store", str(tmp_path / "rows"))


    class TestMyBlobs(StreamedBlobsSuite):
        @pytest.fixture
        async def blobs(self, tmp_path):
            return await open_blobs(tmp_path / "files")

A store that is gone with its process leaves out ``DurabilitySuite``; its ``bench`` is any object with an ``open`` method (``StoreOpener``).
"""
