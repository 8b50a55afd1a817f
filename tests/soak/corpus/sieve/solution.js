const n = Number(require("fs").readFileSync(0, "utf8"));
const composite = new Uint8Array(n + 1);
const primes = [];
for (let p = 2; p <= n; p++) {
  if (composite[p]) continue;
  primes.push(p);
  for (let m = p * p; m <= n; m += p) composite[m] = 1;
}
const sum = primes.reduce((a, b) => a + b, 0);
console.log([...primes, `${primes.length} ${sum}`].join("\n"));
