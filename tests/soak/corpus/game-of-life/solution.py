"""Play Conway's game of life."""

import sys
from collections import Counter

generations, *rows = sys.stdin.read().split()
height, width = len(rows), len(rows[0])
alive = {(x, y) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell == "#"}
for _ in range(int(generations)):
    near = Counter((x + dx, y + dy) for x, y in alive for dx in (-1, 0, 1) for dy in (-1, 0, 1) if dx or dy)
    alive = {
        (x, y) for (x, y), count in near.items() if 0 <= x < width and 0 <= y < height and (count == 3 or (count == 2 and (x, y) in alive))
    }
for y in range(height):
    print("".join("#" if (x, y) in alive else "." for x in range(width)))
