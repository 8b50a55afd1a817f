"""Names and paths of one sandbox."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sandlot.drivers.oci.paths import SandboxFolder, is_ref, new_ref
from sandlot.model.ids import NodeId

NODE = NodeId("ab27")


def _repeat(number: int, count: int) -> bytes:
    return bytes([number] * count)


def test_ref_contains_its_node_and_has_a_fixed_length() -> None:
    refs = {new_ref(NODE, partial(_repeat, number)) for number in range(256)}
    assert {len(ref) for ref in refs} == {21}
    assert all(is_ref(ref, NODE) for ref in refs)
    assert len(refs) > 30
    assert not any(is_ref(ref, NodeId("ab26")) for ref in refs)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ab27",
        "ab27-",
        "..",
        "ab27-aaaaaaaaaaaaaaaaa",
        "ab27-aaaaaaaaaaaaaaa",
        "ab27-aaaaaaaaaaaaaaa/",
        "ab27-aaaaaaaaaaaaaaaa\n",
        "ab27-AAAAAAAAAAAAAAAA",
    ],
)
def test_other_text_is_not_a_ref(text: str) -> None:
    assert not is_ref(text, NODE)


def test_files_that_a_later_service_reads_keep_their_names() -> None:
    folder = SandboxFolder(Path("/data"))
    found = (folder.record, folder.live, folder.exit, folder.image, folder.refreeze, folder.roomy, folder.disk_image)
    assert [path.name for path in found] == ["record.json", "live", "exit", "image.new", "refreeze", "roomy", "disk.img"]
