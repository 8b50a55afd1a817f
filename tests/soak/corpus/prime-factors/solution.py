"""Print the prime factors of numbers."""

import sys


def factors(n):
    d = 2
    while d * d <= n:
        while n % d == 0:
            yield d
            n //= d
        d += 1
    if n > 1:
        yield n


for line in sys.stdin:
    print(*factors(int(line)))
