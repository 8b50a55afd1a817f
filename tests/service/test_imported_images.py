"""An image in an archive becomes a template, whatever the image contains: here neither a shell nor Python nor a user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandlot.cli.main import dispatch
from sandlot.link.payload import INTERPRETER_ARGV
from sandlot.sdk import Sandbox
from tests.support.localservice import LocalService
from tests.support.oci import MadeImage, docker_of, tar_of

IMAGE = MadeImage(
    [
        tar_of({"var/lib/dpkg/status.d/libc6": b"Package: libc6\nVersion: 2.36\n", "srv/old": b"old\n"}),
        tar_of({"srv/.wh.old": b"", "srv/new": b"new\n", "srv/node_modules/left/package.json": b'{"name": "left", "version": "3.0.0"}'}),
    ],
    settings={"Env": ["A=b=c"], "User": "4321:4321", "WorkingDir": "/srv"},
)
CHECK = "import os, sys; sys.stdout.write(f'{os.getuid()} {os.getcwd()} {sorted(os.listdir())} {os.environ[\"A\"]}')"


@pytest.mark.slow
def test_archive_becomes_a_template_with_a_bill_of_materials(
    service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(service.data_dir))
    archive = tmp_path / "tiny.tar"
    archive.write_bytes(tar_of(docker_of(IMAGE, "tiny:1")))
    assert dispatch(["image", "import", str(archive), "--image", "tiny:1"]) == 0
    capsys.readouterr()
    with Sandbox.create(template="tiny", client=service.client) as sandbox:
        assert sandbox.commands.run([*INTERPRETER_ARGV, "-c", CHECK], check=True).stdout == "4321 /srv ['new', 'node_modules'] b=c"
        assert sandbox.files.read("/srv/new") == "new\n"
        written = sandbox.files.write("/tmp/written", "x")
        assert (written.uid, written.gid) == (4321, 4321)
    assert dispatch(["template", "sbom", "tiny", "-o", str(tmp_path / "bill.json")]) == 0
    bill = json.loads((tmp_path / "bill.json").read_text())
    assert [each["purl"] for each in bill["components"]] == ["pkg:deb/debian/libc6@2.36", "pkg:npm/left@3.0.0"]
    assert service.client.sandboxes.list() == []
    assert dispatch(["template", "rm", "tiny"]) == 0
