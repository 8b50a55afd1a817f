"""Count the words of a text."""

import re
import sys
from collections import Counter

counts = Counter(re.findall(r"[a-z0-9]+(?:'[a-z]+)*", sys.stdin.read().lower()))
for word, count in sorted(counts.items()):
    print(word, count)
