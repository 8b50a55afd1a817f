import { readFileSync } from "node:fs";

const counts: Record<string, number> = Object.create(null);
for (const [word] of readFileSync(0, "utf8").toLowerCase().matchAll(/[a-z0-9]+(?:'[a-z]+)*/g)) {
  counts[word] = (counts[word] ?? 0) + 1;
}
const lines: string[] = Object.keys(counts).sort().map((word) => `${word} ${counts[word]}`);
if (lines.length > 0) console.log(lines.join("\n"));
