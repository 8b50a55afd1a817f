"""Modes of created folders. Reading, writing and invalid paths are tested through the HTTP API and in `tests/service`."""

from __future__ import annotations

import pytest

from sandlot.core.files import files
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, SandlotError
from sandlot.model.specs import User
from tests.support.service import pieces

USER = User.USER


async def test_created_folder_has_the_requested_mode_and_its_parents_have_not(sandbox: Sandbox) -> None:
    made = await files.make_directory(sandbox, "/workspace/above/open/", user=USER, mode=0o1777)
    assert (made.mode, (await files.stat(sandbox, "/workspace/above", user=USER)).mode) == (0o1777, 0o755)
    again = await files.make_directory(sandbox, "/workspace/above/open", user=USER, mode=0o700)
    assert again.mode == 0o1777
    assert (await files.make_directory(sandbox, "/workspace/plain", user=USER)).mode == 0o755
    await files.write(sandbox, "/workspace/file", pieces(), user=USER)
    for path, parents in (("/workspace/plain", False), ("/workspace/file", True)):
        with pytest.raises(SandlotError) as refused:
            await files.make_directory(sandbox, path, user=USER, parents=parents, mode=0o755)
        assert refused.value.code == ErrorCode.PATH_EXISTS
