"""Programs of Sandbase's documentation, as they stand there: ``requests``, and an address and a key above."""

from __future__ import annotations

QUICK_START = '''
import requests

HEADERS = {"Authorization": f"Bearer {KEY}"}

# 1. Create a sandbox (boots in ~60ms)
sandbox = requests.post(f"{BASE}/sandboxes", headers=HEADERS, json={
    "templateID": "code_interpreter",
    "timeout": 300
}).json()

sandbox_id = sandbox["sandboxID"]

# 2. Execute code
result = requests.post(f"{BASE}/sandboxes/{sandbox_id}/processes", headers=HEADERS, json={
    "cmd": "python3",
    "args": ["-c", "import pandas as pd; print(pd.__version__)"]
}).json()

print(result["stdout"])  # "2.1.4"

# 3. Upload a file
requests.post(f"{BASE}/sandboxes/{sandbox_id}/files", headers=HEADERS,
    files={"file": ("data.csv", open("data.csv", "rb"))},
    data={"path": "/workspace/data.csv"}
)

# 4. Process the file
result = requests.post(f"{BASE}/sandboxes/{sandbox_id}/processes", headers=HEADERS, json={
    "cmd": "python3",
    "args": ["-c", """
import pandas as pd
df = pd.read_csv('/workspace/data.csv')
print(f"Rows: {len(df)}, Columns: {list(df.columns)}")
print(df.describe().to_string())
"""]
}).json()

print(result["stdout"])
'''
"""The quick start; ``data.csv`` is in the folder that it runs in."""

AGENTS = """
import requests

HEADERS = {"Authorization": f"Bearer {KEY}"}

# Create an agent with sandbox access
agent = requests.post(f"{BASE}/default/v1/agents", headers=HEADERS, json={
    "name": "Data Analyst",
    "model": {"name": "claude-sonnet-4"},
    "system": \"\"\"You are a data analyst. When users ask questions about data,
write Python code to analyze it and execute it in your sandbox.
Always show your work and explain the results.\"\"\",
    "tools": [{"type": "mcp", "server": "code-exec"}]
}).json()

# Create a session with a sandbox environment
session = requests.post(f"{BASE}/default/v1/sessions", headers=HEADERS, json={
    "agent_id": agent["id"],
    "environment": {
        "template_id": "code_interpreter",
        "timeout": 600
    }
}).json()

# Now the agent can execute code in its sandbox
response = requests.post(
    f"{BASE}/default/v1/sessions/{session['id']}/events",
    headers=HEADERS,
    json={
        "type": "message",
        "role": "user",
        "content": "Analyze the sales data in /workspace/sales.csv and create a chart"
    }
).json()
import json
print(json.dumps({"session": session["id"], "response": response}))
"""
"""The second program, and what it has got. An agent needs a model, which the operator of the service configures."""

CONNECT = """
from e2b import Sandbox

paginator = Sandbox.list(api_url="https://api.sandbase.ai")
running = paginator.next_items()
if not running:
    raise Exception("No running sandboxes found")

sandbox_id = running[0].sandbox_id

from e2b import Sandbox

sandbox = Sandbox.connect(sandbox_id, api_url="https://api.sandbase.ai")

result = sandbox.commands.run("whoami")
print(f'Running in {sandbox.sandbox_id} as "{result.stdout.strip()}"')
"""
"""Connecting, with E2B's client: the page's two parts one after the other."""
