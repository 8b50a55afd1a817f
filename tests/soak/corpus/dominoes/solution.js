function hasChain(first, last, stones) {
  if (stones.length === 0) return first === last;
  return stones.some(([a, b], i) => {
    const rest = stones.toSpliced(i, 1);
    return (a === last && hasChain(first, b, rest)) || (b === last && hasChain(first, a, rest));
  });
}

for (const line of require("fs").readFileSync(0, "utf8").trimEnd().split("\n")) {
  const [[first, last], ...rest] = line.split(" ").map((stone) => stone.split("-"));
  console.log(hasChain(first, last, rest) ? "yes" : "no");
}
