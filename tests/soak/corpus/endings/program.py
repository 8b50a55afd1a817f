"""End as the input says."""

import subprocess

command, _, rest = input().partition(" ")
if command == "crash":
    print([][1])
elif command == "spin":
    while True:
        pass
elif command == "eat":
    eaten = []
    while True:
        eaten.append(b"x" * (1 << 20))
elif command == "sh":
    subprocess.run(["sh", "-c", rest], check=True)
print("done")
