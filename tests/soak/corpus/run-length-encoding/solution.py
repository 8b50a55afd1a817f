"""Encode and decode texts by the length of runs."""

import re
import sys
from itertools import groupby


def encode(text):
    runs = ((len(list(run)), char) for char, run in groupby(text))
    return "".join(f"{length if length > 1 else ''}{char}" for length, char in runs)


def decode(text):
    return re.sub(r"(\d*)(\D)", lambda found: int(found[1] or 1) * found[2], text)


for line in sys.stdin:
    command, _, text = line.rstrip("\n").partition(" ")
    print({"encode": encode, "decode": decode}[command](text))
