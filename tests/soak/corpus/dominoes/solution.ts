import { readFileSync } from "node:fs";

type Stone = readonly [number, number];

function parse(text: string): Stone {
  const [a, b] = text.split("-").map(Number);
  if (a === undefined || b === undefined) throw new TypeError(text);
  return [a, b];
}

function hasChain([first, last]: Stone, stones: ReadonlyArray<Stone>): boolean {
  if (stones.length === 0) return first === last;
  const without = (stone: Stone): Stone[] => stones.filter((each) => each !== stone);
  return stones.some(
    (stone) =>
      (stone[0] === last && hasChain([first, stone[1]], without(stone))) || (stone[1] === last && hasChain([first, stone[0]], without(stone))),
  );
}

for (const line of readFileSync(0, "utf8").trim().split("\n")) {
  const [start, ...rest] = line.split(" ").map(parse);
  console.log(hasChain(start!, rest) ? "yes" : "no");
}
