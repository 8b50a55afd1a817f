import { readFileSync } from "node:fs";

namespace Roman {
  const numerals: readonly (readonly [number, string])[] = [
    [1000, "M"], [900, "CM"], [500, "D"], [400, "CD"], [100, "C"], [90, "XC"], [50, "L"], [40, "XL"], [10, "X"], [9, "IX"], [5, "V"], [4, "IV"], [1, "I"],
  ];

  export function format(number: number): string {
    const first = numerals.find(([value]) => value <= number);
    return first === undefined ? "" : first[1] + format(number - first[0]);
  }
}

for (const line of readFileSync(0, "utf8").trim().split("\n")) console.log(Roman.format(parseInt(line, 10)));
