function factors(n) {
  const found = [];
  for (let d = 2n; d * d <= n; d++) {
    for (; n % d === 0n; n /= d) found.push(d);
  }
  return n > 1n ? [...found, n] : found;
}

for (const line of require("fs").readFileSync(0, "ascii").split("\n").filter(Boolean)) {
  process.stdout.write(factors(BigInt(line)).join(" ") + "\n");
}
