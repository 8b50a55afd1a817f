"""The memory guard of a gVisor sandbox whose files and variables together exceed the memory limit, through the SDK."""

from __future__ import annotations

import pytest

from sandlot import Sandbox
from tests.support.localservice import LocalService

pytestmark = pytest.mark.slow

FILL = """
import os
held = os.urandom({held} << 20)
with open('/workspace/big', 'wb') as file:
    for _ in range({file}):
        file.write(os.urandom(1 << 20))  # gVisor does not save pages of zeros
"""
CHECK = "import time; time.sleep(0.3); print(len(held) >> 20)"
"""The pause is long enough for several measurements of the guest."""
GREEDY = "import time\nl = []\nwhile True: l.append(b'z' * (1 << 20)); time.sleep(0.002)"
BOMB = f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {GREEDY!r}]).returncode, len(held) >> 20)"

MAKE_FILES = """
import os
for number in range(25_000):
    folder = f'/workspace/many/{number // 100}'
    if number % 100 == 0:
        os.makedirs(folder)
    with open(f'{folder}/{number}', 'w') as file:
        file.write(str(number))
"""
COUNT_FILES = """
paths = [os.path.join(folder, name) for folder, _, names in os.walk('/workspace/many') for name in names]
print(sum(open(path).read() == os.path.basename(path) for path in paths))
"""


def run(sandbox: Sandbox, code: str) -> str:
    """Return what a cell printed, or the status of a cell that failed."""
    done = sandbox.run_code(code, timeout=120)
    return done.stdout.strip() if done.status == "ok" else done.status


@pytest.mark.parametrize("memory, file, held", [("256M", 180, 45)])
def test_files_do_not_count_as_memory_after_a_snapshot_or_restore(service: LocalService, memory: str, file: int, held: int) -> None:
    with service.create(memory=memory, disk="512M", isolation="gvisor") as made:
        assert run(made, FILL.format(file=file, held=held)) == ""
        snapshot = made.snapshot()
        try:
            assert run(made, CHECK) == str(held), "after the snapshot"
            made.hibernate()
            made.resume()
            assert run(made, CHECK) == str(held), "after the wake"
            with Sandbox.create(snapshot=snapshot.id, client=service.client) as copy:
                assert run(copy, CHECK) == str(held), "in a copy"
        finally:
            service.client.snapshots.delete(snapshot.id)
        assert run(made, BOMB) == f"-9 {held}", "only the greedy process is killed"
        assert run(made, GREEDY) == "oom"
        assert run(made, "print('continues')") == "continues"


@pytest.mark.soak
def test_saves_in_quick_succession_leave_enough_memory_for_many_files(service: LocalService) -> None:
    with service.create(memory="256M", isolation="gvisor", timeout=3600) as made:
        assert run(made, MAKE_FILES) == ""
        for _ in range(2):
            service.client.snapshots.delete(made.snapshot().id)
        made.hibernate()
        made.resume()
        service.client.snapshots.delete(made.snapshot().id)
        assert run(made, COUNT_FILES) == "25000"
