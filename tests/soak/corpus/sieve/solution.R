n <- scan(file("stdin"), n = 1, quiet = TRUE)
prime <- seq_len(n) > 1
p <- 2
while (p * p <= n) {
  if (prime[p]) prime[seq(p * p, n, p)] <- FALSE
  p <- p + 1
}
primes <- which(prime)
if (length(primes)) writeLines(as.character(primes))
cat(length(primes), sum(primes), "\n")
