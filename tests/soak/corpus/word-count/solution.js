const text = require("fs").readFileSync(0, "utf8").toLowerCase();
const counts = new Map();
for (const word of text.match(/[a-z0-9]+(?:'[a-z]+)*/g) ?? []) counts.set(word, (counts.get(word) ?? 0) + 1);
for (const word of [...counts.keys()].sort()) console.log(word, String(counts.get(word)));
