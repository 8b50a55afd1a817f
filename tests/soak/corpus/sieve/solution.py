"""Print prime numbers with the sieve of Eratosthenes."""

n = int(input())
is_prime = bytearray([1]) * (n + 1)
primes = []
for p in range(2, n + 1):
    if is_prime[p]:
        primes.append(p)
        for m in range(p * p, n + 1, p):
            is_prime[m] = 0
print(*primes, f"{len(primes)} {sum(primes)}", sep="\n")
