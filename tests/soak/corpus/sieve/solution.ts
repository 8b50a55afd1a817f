import { readFileSync } from "node:fs";

function* sieve(n: number): Generator<number> {
  const composite = new Set<number>();
  for (let p = 2; p <= n; p++) {
    if (composite.has(p)) continue;
    yield p;
    for (let m = p * p; m <= n; m += p) composite.add(m);
  }
}

let count = 0;
let sum = 0;
for (const p of sieve(Number(readFileSync(0, "utf8")))) {
  console.log(String(p));
  count += 1;
  sum += p;
}
console.log(`${count} ${sum}`);
