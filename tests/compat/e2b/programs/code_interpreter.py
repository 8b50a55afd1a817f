"""Code and a command in a sandbox, with a client that always sends code to the host of its port. Prints what it saw as JSON."""

import json

from e2b_code_interpreter import Sandbox

seen = {}
sandbox = Sandbox.create(timeout=120)
try:
    seen["value"] = sandbox.run_code("x = 6 * 7\nx").text
    seen["kept"] = sandbox.run_code("print(x)").logs.stdout
    seen["error"] = sandbox.run_code("1 / 0").error.name
    context = sandbox.create_code_context(cwd="/tmp")
    seen["context"] = sandbox.run_code("import os; os.getcwd()", context=context).text
    seen["command"] = sandbox.commands.run("echo hi").stdout
    seen["host"] = sandbox.get_host(3000) == f"3000-{sandbox.sandbox_id}.{sandbox.sandbox_domain}"
finally:
    sandbox.kill()
print(json.dumps(seen))
