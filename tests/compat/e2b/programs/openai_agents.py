"""An agent of openai-agents in a sandbox of `sandbox_type="e2b"`. A scripted model calls the tools. Prints what it saw as JSON."""

import asyncio
import io
import json
from pathlib import Path

from agents import ModelResponse, Runner, Usage, set_tracing_disabled
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.models.interface import Model
from agents.run import RunConfig
from agents.sandbox import SandboxAgent, SandboxRunConfig
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

COMMANDS = ["echo 'a,b' > data.csv && wc -c < data.csv", "cat data.csv; pwd; exit 3"]


class ScriptedModel(Model):
    """Calls the shell tool with each command, then answers with the outputs."""

    def __init__(self):
        self.outputs = []

    async def get_response(self, system_instructions, input, *args, **kwargs):
        outputs = [item["output"] for item in input if item.get("type") == "function_call_output"]
        if len(outputs) < len(COMMANDS):
            arguments = json.dumps({"cmd": COMMANDS[len(outputs)], "login": False})
            call = ResponseFunctionToolCall(type="function_call", name="exec_command", call_id=f"call-{len(outputs)}", arguments=arguments)
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        self.outputs = outputs
        text = ResponseOutputText(type="output_text", text="done", annotations=[])
        message = ResponseOutputMessage(id="message", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


async def main():
    set_tracing_disabled(True)
    seen = {}
    client = E2BSandboxClient()
    options = E2BSandboxClientOptions(sandbox_type="e2b", timeout=120)
    session = await client.create(options=options)
    async with session:
        model = ScriptedModel()
        agent = SandboxAgent(name="agent", model=model, instructions="Use the shell.")
        run = await Runner.run(agent, "go", run_config=RunConfig(sandbox=SandboxRunConfig(session=session)))
        seen["agent"] = [run.final_output, ["Process exited with code 0" in model.outputs[0], model.outputs[0].splitlines()[-1].strip()]]
        seen["failed"] = ["Process exited with code 3" in model.outputs[1], "a,b" in model.outputs[1]]
        await session.write(Path("note.txt"), io.BytesIO(b"written"))
        seen["file"] = (await session.read(Path("note.txt"))).read().decode()
        seen["listed"] = sorted(Path(entry.path).name for entry in await session.ls("."))
        archive = await session.persist_workspace()
        await session.exec("rm", "note.txt")
        await session.hydrate_workspace(archive)
        seen["restored"] = (await session.read(Path("note.txt"))).read().decode()
        started = await session.pty_exec_start("read line; echo got $line", shell=True, tty=True)
        update = await session.pty_write_stdin(session_id=started.process_id, chars="input\n", yield_time_s=5)
        seen["terminal"] = b"got input" in update.output
        seen["running"] = await session.running()
    await client.delete(session)
    seen["after"] = await session.running()
    print(json.dumps(seen))


asyncio.run(main())
