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

agent = requests.post(f"{BASE}/default/v1/agents", headers=HEADERS, json={
    "name": "Data Analyst",
    "model": {"name": "claude-sonnet-4"},
    "tools": [{"type": "mcp", "server": "code-exec"}]
})
print(agent.status_code, agent.json()["message"])
"""
"""How the second program begins; an agent runs a model, which is not served here."""

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
