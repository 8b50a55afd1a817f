"""The backend `E2BSandbox` of langchain-e2b for Deep Agents. Prints what it saw as JSON."""

import asyncio
import json

from e2b import AsyncSandbox, Sandbox
from langchain_e2b import AsyncE2BSandbox, E2BSandbox

seen = {}
sandbox = Sandbox.create(timeout=120)
backend = E2BSandbox(sandbox=sandbox)
done = backend.execute("pwd; echo oops >&2; exit 3")
seen["command"] = [done.output.splitlines(), done.exit_code]
seen["timeout"] = backend.execute("sleep 60", timeout=1).exit_code
seen["uploaded"] = [each.error for each in backend.upload_files([("/home/user/folder/a.txt", b"one\ntwo\n"), ("relative", b"")])]
seen["downloaded"] = [
    [each.content.decode() if each.content else None, each.error]
    for each in backend.download_files(["/home/user/folder/a.txt", "/home/user/folder", "/missing"])
]
seen["written"] = backend.write("/home/user/folder/b.py", "value = 1\n").error
seen["edited"] = backend.edit("/home/user/folder/b.py", "1", "2").occurrences
seen["read"] = backend.read("/home/user/folder/b.py").file_data["content"]
seen["listed"] = sorted(each["path"] for each in backend.ls("/home/user/folder").entries)
seen["found"] = [[each["path"], each["line"]] for each in backend.grep("two", "/home/user/folder").matches]
seen["matching"] = [each["path"] for each in backend.glob("*.py", "/home/user/folder").matches]


async def main():
    backend = AsyncE2BSandbox(sandbox=await AsyncSandbox.connect(sandbox.sandbox_id))
    done = await backend.aexecute("python3 folder/b.py && cat folder/b.py")
    return [done.output.strip(), done.exit_code]


seen["asynchronous"] = asyncio.run(main())
seen["killed"] = sandbox.kill()
print(json.dumps(seen))
