"""Names and places of one sandbox."""

from __future__ import annotations

from functools import partial
from pathlib import Path, PurePosixPath

import pytest

from sandlot.drivers.oci.places import VIEW_FOLDER, Folder, is_ref, new_ref, node_group, sandboxes_folder
from sandlot.model.ids import NodeId

NODE = NodeId("ab27")


def _repeat(number: int, count: int) -> bytes:
    return bytes([number] * count)


def test_a_ref_carries_its_node_and_has_one_length() -> None:
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
def test_nothing_else_is_a_ref(text: str) -> None:
    assert not is_ref(text, NODE)


def test_everything_is_derived_from_the_ref() -> None:
    folder = Folder(sandboxes_folder(Path("/data")) / "ab27-aaaaaaaaaaaaaaaa")
    assert folder.ref == "ab27-aaaaaaaaaaaaaaaa"
    assert folder.disk_image == Path("/data/sandboxes/ab27-aaaaaaaaaaaaaaaa/disk.img")
    assert node_group(NODE) == PurePosixPath("/sandlot/ab27")
    own = [getattr(folder, name) for name in dir(Folder) if isinstance(getattr(Folder, name), property) and name != "ref"]
    assert len(set(own)) == len(own)
    assert all(place.is_relative_to(folder.path) for place in own)


def test_files_that_a_later_service_reads_keep_their_names() -> None:
    folder = Folder(Path("/data"))
    found = (folder.record, folder.live, folder.exit, folder.image, folder.refreeze, folder.roomy, folder.disk_image)
    assert [path.name for path in found] == ["record.json", "live", "exit", "image.new", "refreeze", "roomy", "disk.img"]


def test_a_control_socket_has_room_for_its_path() -> None:
    # unix(7): 108 bytes with the NUL at the end.
    assert len(f"{VIEW_FOLDER}/runtime/runsc-{'x' * 21}.sock") < 108
