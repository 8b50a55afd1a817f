"""Check whether brackets are paired."""

import sys

PAIRS = {")": "(", "]": "[", "}": "{"}


def is_paired(line):
    stack = []
    for char in line:
        if char in PAIRS.values():
            stack.append(char)
        elif char in PAIRS and (not stack or stack.pop() != PAIRS[char]):
            return False
    return not stack


for line in sys.stdin:
    print("yes" if is_paired(line) else "no")
