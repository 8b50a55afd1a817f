"""A template is built from a Dockerfile on the command line, its sandboxes have what the build made, and nothing is left when it is deleted."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from sandlot import Sandbox
from tests.support.localservice import LocalService
from tests.support.roots import busybox_image

DOCKERFILE = """\
FROM base AS tools
RUN echo '#!/bin/sh' > /tool && echo 'echo from the first stage' >> /tool && chmod 755 /tool
FROM base
RUN echo built > /etc/marker && rm /etc/debian_version
ENV GREETING=hello
WORKDIR /srv/app
COPY . .
COPY --from=tools /tool /usr/bin/tool
USER user
CMD date +%s%N > /tmp/started && exec python3 -u -m http.server 8000
"""
CLONE = "cat /tmp/started; hostname; cat /proc/sys/kernel/random/boot_id; printenv MINE"
CHECK = "id -un; pwd; cat /etc/marker; echo $GREETING; tool; cat page.html; ls /etc/debian_version; curl -s localhost:8000/page.html"


@pytest.mark.slow
def test_dockerfile_becomes_a_template(service: LocalService, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "page.html").write_text("<p>page</p>\n")
    (tmp_path / ".dockerignore").write_text("secret\n")
    (tmp_path / "secret").write_text("s")
    templates = service.client.templates
    built = templates.build("web", context=tmp_path, ready_command="curl -sf localhost:8000", memory="512M")
    assert built.status == "ready"
    assert service.client.sandboxes.list() == []
    with service.create(template="web", envs={"MINE": "1"}) as first, service.create(template="web", envs={"MINE": "2"}) as second:
        found = [each.commands.run(CLONE).stdout.splitlines() for each in (first, second)]
        assert found[0][0] == found[1][0], "the start command runs once, in the build"
        assert ([each[1] for each in found], [each[3] for each in found]) == ([first.id, second.id], ["1", "2"])
        assert found[0][2] != found[1][2]
        (server,) = [each for each in first.commands.list() if each.running]
        assert "http.server" in server.argv[-1]
        assert "Serving HTTP" in "".join(each.text for each in first.commands.connect(server.id).output(follow=False))
    with service.create(template="web") as sandbox:
        assert sandbox.commands.run(CHECK).stdout.splitlines() == [
            *("user", "/srv/app", "built", "hello", "from the first stage", "<p>page</p>", "<p>page</p>")
        ]
        assert sandbox.commands.run("ls -A").stdout.split() == [".dockerignore", "Dockerfile", "page.html"]
        assert sandbox.info().limits.memory_bytes == 512 << 20
        sandbox.snapshot("of-web")
    with Sandbox.create(snapshot="of-web", client=service.client) as copy:
        assert copy.commands.run("curl -s localhost:8000/page.html").stdout == "<p>page</p>\n"
    lines: list[str] = []
    again = templates.build("web", context=tmp_path, on_line=lambda line: lines.append(line.text))
    assert again.status == "ready"
    assert any(line.startswith("CACHED RUN echo built") for line in lines)
    lost = templates.start_build("web", context=tmp_path, ready_command="false")
    assert any("Serving HTTP" in line.text for line in templates.follow_log(lost.id)), "the start command runs"
    service.end(signal.SIGKILL)
    service.start()
    assert (templates.get_build(lost.id).status, templates.get_build(lost.id).step) == ("failed", "finalize")
    assert service.client.sandboxes.list() == []
    with service.create(template="web") as sandbox:
        assert sandbox.commands.run("curl -s localhost:8000/page.html").stdout == "<p>page</p>\n"
    service.client.snapshots.delete("of-web")
    templates.delete("web")
    assert "web" not in [each.name for each in templates.list()]


BARE = """\
FROM scratch
COPY busybox /bin/
RUN ["/bin/busybox", "sh", "-c", "cd /bin; for each in sh sleep grep; do ./busybox ln -s busybox $each; done"]
CMD exec busybox httpd -f -p 8000 -h /etc
"""
E2B_READY = """\
[ -n "$(ss -Htuln sport = :8000)" ] && \
curl -s -o /dev/null -w "%{http_code}" http://localhost:8000/hosts | grep -q "200" && pgrep busybox > /dev/null"""
"""The ready commands of E2B's client for a port, a URL and a process, in one."""


@pytest.mark.slow
def test_ready_commands_of_e2b_work_without_their_programs(service: LocalService, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(BARE)
    shutil.copy2(busybox_image() / "bin/busybox", tmp_path)
    service.client.templates.build("bare", context=tmp_path, ready_command=E2B_READY)
    with service.create(template="bare") as sandbox:
        assert "localhost" in sandbox.commands.run("busybox wget -q -O - http://localhost:8000/hosts").stdout
        assert sandbox.commands.run("command -v ss || command -v curl").stdout == "", "only the ready command has them"
    (tmp_path / "Dockerfile").write_text(f"{BARE}ENV MODE=second\n")
    service.client.templates.build("bare", context=tmp_path, ready_command=E2B_READY, tags=["v2"])
    for name, mode in (("bare:v2", "second"), ("bare", "")):  # both builds have the same files
        with service.create(template=name) as sandbox:
            assert sandbox.commands.run("echo $MODE").stdout == f"{mode}\n"
    service.client.templates.delete("bare")


@pytest.mark.slow
@pytest.mark.parametrize("user, uid", [("root", 0), ("4321:4322", 4321)])
def test_code_and_files_are_those_of_the_user_of_the_template(service: LocalService, user: str, uid: int) -> None:
    templates, stored = service.client.templates, service.client.file_store
    templates.build("owned", dockerfile=f"FROM base\nUSER {user}\nWORKDIR /srv/app\nENV GREETING=hello\n", memory="512M")
    with service.create(template="owned") as sandbox:
        code = "import os; print(os.getuid(), os.getcwd(), os.environ['GREETING'], os.environ['HOME']); open('mine', 'w').write('1')"
        home = sandbox.commands.run("echo $HOME").stdout.strip()
        assert sandbox.run_code(code).stdout == f"{uid} /srv/app hello {home}\n"
        assert sandbox.run_code("id -u; pwd; echo $GREETING", language="bash").stdout == f"{uid}\n/srv/app\nhello\n"
        assert sandbox.run_code("console.log(process.getuid(), process.cwd())", language="javascript").stdout == f"{uid} /srv/app\n"
        file = stored.upload(b"stored", filename="given")
        stored.import_files(sandbox.id, [file.id])
        sandbox.files.write("written", "1")
        assert {each.uid for each in sandbox.files.list()} == {uid}
        sandbox.commands.run("umask 077; echo kept > secret")
        assert stored.export_file(sandbox.id, "secret").size_bytes == len("kept\n")
    templates.delete("owned")
