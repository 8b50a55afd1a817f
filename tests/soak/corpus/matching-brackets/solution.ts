import { readFileSync } from "node:fs";

type Bracket = "(" | "[" | "{";
const opening: Readonly<Record<string, Bracket>> = { ")": "(", "]": "[", "}": "{" };

function isPaired(line: string): boolean {
  const stack: Bracket[] = [];
  for (const char of line) {
    if ("([{".includes(char)) stack.push(char as Bracket);
    else if (char in opening && stack.pop() !== opening[char]) return false;
  }
  return !stack.length;
}

const lines: string[] = readFileSync(0, "utf8").replace(/\n$/, "").split("\n");
lines.forEach((line: string): void => console.log(isPaired(line) ? "yes" : "no"));
