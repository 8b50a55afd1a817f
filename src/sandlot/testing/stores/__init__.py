"""Shipped suites that a third party's store of rows, or of bytes, must pass.

Use them from a test module of yours, as the suite of a driver (:mod:`sandlot.testing`)::

    class TestMine(StoreSuite):
        @pytest.fixture
        def bench(self, tmp_path):
            return StoreBench("mine.store:open_store", str(tmp_path / "rows"))


    class TestMyBlobs(BlobsSuite):
        @pytest.fixture
        async def blobs(self, tmp_path):
            return await open_blobs(tmp_path / "files")
"""
