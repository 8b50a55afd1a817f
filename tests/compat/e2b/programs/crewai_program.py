"""The E2B tools of CrewAI for commands and files. Prints what it saw as JSON."""

import json

from crewai_tools import E2BExecTool, E2BFileTool
from e2b import Sandbox

seen = {}
done = E2BExecTool(envs={"COLOUR": "green"}).run(command="echo $COLOUR in $PWD")
seen["fresh"] = [done["stdout"], done["exit_code"]]

sandbox = Sandbox.create(timeout=120)
files, commands = E2BFileTool(sandbox_id=sandbox.sandbox_id), E2BExecTool(sandbox_id=sandbox.sandbox_id)
files.run(action="mkdir", path="/home/user/folder")
seen["written"] = files.run(action="write", path="/home/user/folder/note.txt", content="one\n")["bytes"]
# Not "append": with these clients it passes a type that they refuse.
seen["bytes"] = files.run(action="write", path="/home/user/folder/note.txt", content="b25lCnR3bwo=", binary=True)["bytes"]
seen["read"] = files.run(action="read", path="/home/user/folder/note.txt")["content"]
seen["command"] = commands.run(command="wc -l < note.txt", cwd="/home/user/folder", timeout=20)["stdout"].strip()
seen["listed"] = [entry["name"] for entry in files.run(action="list", path="/home/user/folder")["entries"]]
info = files.run(action="info", path="/home/user/folder/note.txt")
seen["info"] = [info["size"], info["owner"], info["permissions"]]
files.run(action="delete", path="/home/user/folder/note.txt")
seen["exists"] = files.run(action="exists", path="/home/user/folder/note.txt")["exists"]
seen["killed"] = sandbox.kill()
print(json.dumps(seen))
