const { readFileSync } = require("node:fs");

const grades = new Map();
for (const line of readFileSync("/dev/stdin", "utf8").trim().split("\n")) {
  const [name, grade] = line.split(" ");
  if (!grades.has(name)) grades.set(name, Number(grade));
}
const roster = Object.groupBy(grades.keys(), (name) => grades.get(name));
for (const grade of Object.keys(roster).sort((a, b) => a - b)) {
  console.log(`${grade}: ${roster[grade].sort().join(" ")}`);
}
