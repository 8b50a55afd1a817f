"""Parts of the stage's program. ``test_launcher.py`` and every sandbox run the whole."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from sandlot.host.stage import main


def test_stage_imports_only_itself_and_built_in_modules() -> None:
    folder = Path(main.__file__).parent
    for module in folder.glob("*.py"):
        tree = ast.parse(module.read_bytes())
        names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        assert names <= {"ctypes", "fcntl", "marshal", "os", "resource", "select", "sys"}
    program = "import sys; sys.path.append(sys.argv[1]); import stage.main; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-SI", "-c", program, str(folder.parent)], capture_output=True, text=True, check=True, env={})
    assert set(done.stdout.split()).isdisjoint({"typing", "enum", "re", "collections", "json", "pathlib", "sandlot", "signal", "subprocess"})


def test_log_is_bounded_and_keeps_the_newest_output(tmp_path: Path) -> None:
    log = main.Log(str(tmp_path / "guest.log"))
    for number in range(40):
        os.write(log.far_end, bytes([65 + number % 26]) * 10_000)
        assert log.drain()
    kept = (tmp_path / "guest.log.old").read_bytes() + (tmp_path / "guest.log").read_bytes()
    assert main.LOG_BYTES < len(kept) <= 2 * main.LOG_BYTES
    assert kept.endswith(bytes([65 + 39 % 26]) * 10_000)
    assert log.tail == bytes([65 + 39 % 26]) * 2000
    assert log.drain(), "nothing there is not the end"
    os.close(log.far_end)
    assert not log.drain()
    for handle in (log.pipe, log.file):
        os.close(handle)


def test_published_file_replaces_the_former_one_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "live"
    main.publish(str(target), "1 2 3 4")
    assert target.read_text() == "1 2 3 4"
    main.publish(str(target), "5")
    assert target.read_text() == "5"
    assert [path.name for path in tmp_path.iterdir()] == ["live"]
    assert target.stat().st_mode & 0o777 == 0o600
