"""The programs of PandaStack's guide for agents, as they stand there.

They are texts and not modules, and nothing of them is changed; where they ask and with which key comes from the environment. The second needs
the tool and the function of the first, as the page has them above it, and so does the third the import.
"""

from __future__ import annotations

TOOL = """\
RUN_CODE_TOOL = {
    "name": "run_code",
    "description": (
        "Execute Python code in an isolated sandbox and return its output. "
        "Use this whenever you need to compute, transform data, or test code. "
        "The sandbox has no network egress guarantees and is reset between sessions."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "code": {
                "type": "string",
                "description": "The Python source to run. Print results you want back.",
            }
        },
        "required": ["code"],
    },
}
"""

RUN_CODE = """\
import os
from pandastack import Sandbox

# pip install pandastack ; export PANDASTACK_TOKEN=pds_...

def run_code(code: str) -> str:
    \"\"\"Execute model-written Python in a fresh microVM, return its output.\"\"\"
    # ttl_seconds is a backstop: even if cleanup is skipped, the VM self-destructs.
    with Sandbox.create(template="code-interpreter", ttl_seconds=600) as sb:
        result = sb.run_code(code, language="python")
        out = result.stdout
        if result.exit_code != 0:
            out += f"\\n[exit {result.exit_code}] {result.stderr}"
        return out.strip() or "(no output — did you forget to print?)"

if __name__ == "__main__":
    print(run_code("print(sum(range(101)))"))  # -> 5050
"""

AGENT = """\
import anthropic

client = anthropic.Anthropic()
MODEL = "claude-sonnet-4-5"

def agent(user_request: str) -> str:
    messages = [{"role": "user", "content": user_request}]
    while True:
        resp = client.messages.create(
            model=MODEL,
            max_tokens=2048,
            tools=[RUN_CODE_TOOL],
            messages=messages,
        )
        messages.append({"role": "assistant", "content": resp.content})

        if resp.stop_reason != "tool_use":
            # No more tools requested — return the final text.
            return "".join(b.text for b in resp.content if b.type == "text")

        # Run every tool the model asked for, collect results.
        results = []
        for block in resp.content:
            if block.type == "tool_use" and block.name == "run_code":
                output = run_code(block.input["code"])
                results.append({
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "content": output,
                })
        messages.append({"role": "user", "content": results})

if __name__ == "__main__":
    print(agent("What is the 30th Fibonacci number? Compute it, don't guess."))
"""

SESSION = """\
# Per-session: one VM for the whole conversation.
sb = Sandbox.create(template="code-interpreter", ttl_seconds=1800)
try:
    def run_code(code: str) -> str:
        r = sb.run_code(code, language="python")
        return (r.stdout + (r.stderr if r.exit_code else "")).strip()
    # ... run the agent loop here, all calls share `sb` ...
finally:
    sb.kill()  # always tear down; ttl_seconds is the backstop
"""
