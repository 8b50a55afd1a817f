"""Core operations of the package `e2b`: create, connect, commands, files, pty, list, kill. Prints what it saw as JSON."""

import json
import threading
import uuid

from e2b import CommandExitException, PtySize, Sandbox, SandboxNotFoundException, SandboxQuery

seen = {}
mark = {"program": uuid.uuid4().hex}
sandbox = Sandbox.create(timeout=120, metadata=mark, envs={"COLOUR": "green"})

done = sandbox.commands.run('echo "$COLOUR in $PWD"; echo oops >&2')
seen["command"] = [done.stdout, done.stderr, done.exit_code]
try:
    sandbox.commands.run("exit 3")
except CommandExitException as error:
    seen["failed"] = error.exit_code
background = sandbox.commands.run("read line; echo got $line; sleep 600", background=True, stdin=True)
seen["running"] = background.pid in [each.pid for each in sandbox.commands.list()]
sandbox.commands.send_stdin(background.pid, "input\n")
seen["output"] = next(stdout for stdout, _, _ in background if stdout)
seen["ended"] = [background.kill(), sandbox.commands.kill(4_200_000), sandbox.commands.kill(4_200_000_000)]

sandbox.files.write("note.txt", "written")
sandbox.files.write("folder/bytes", b"\x00\xff")
seen["files"] = [sandbox.files.read("/home/user/note.txt"), list(sandbox.files.read("folder/bytes", format="bytes"))]
seen["folder"] = [sandbox.files.rename("folder", "moved").name, sandbox.files.exists("folder"), [each.name for each in sandbox.files.list("moved")]]
sandbox.files.remove("moved")
seen["removed"] = sandbox.files.exists("moved")

printed = []
terminal = sandbox.pty.create(size=PtySize(rows=24, cols=80))
reader = threading.Thread(target=terminal.wait, kwargs={"on_pty": printed.append})
reader.start()
sandbox.pty.resize(terminal.pid, PtySize(rows=24, cols=101))
sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
reader.join()
seen["terminal"] = b"24 101" in b"".join(printed)

listed = Sandbox.list(query=SandboxQuery(metadata=mark)).next_items()
seen["listed"] = [[each.sandbox_id == sandbox.sandbox_id, each.metadata == mark] for each in listed]
again = Sandbox.connect(sandbox.sandbox_id)
seen["connected"] = again.files.read("note.txt")
seen["killed"] = [again.kill(), sandbox.is_running(), Sandbox.kill(sandbox.sandbox_id)]
try:
    Sandbox.connect(sandbox.sandbox_id)
except SandboxNotFoundException:
    seen["gone"] = True
print(json.dumps(seen))
