import { readFileSync } from "node:fs";

const factors = (n: number, d: number = 2): number[] => {
  for (; ; d++) {
    if (d * d > n) return n > 1 ? [n] : [];
    if (n % d === 0) return [d, ...factors(n / d, d)];
  }
};

const numbers: number[] = readFileSync(0, "utf8").trim().split(/\s+/).map(Number);
console.log(numbers.map((n) => factors(n).join(" ")).join("\n"));
