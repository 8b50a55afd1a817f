"""Find out whether dominoes can be laid in a closed chain."""

import sys


def has_chain(first, last, stones):
    if not stones:
        return first == last
    for i, (a, b) in enumerate(stones):
        rest = stones[:i] + stones[i + 1 :]
        if (a == last and has_chain(first, b, rest)) or (b == last and has_chain(first, a, rest)):
            return True
    return False


for line in sys.stdin:
    (first, last), *rest = (tuple(stone.split("-")) for stone in line.split())
    print("yes" if has_chain(first, last, rest) else "no")
