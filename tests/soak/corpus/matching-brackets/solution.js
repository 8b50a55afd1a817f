const PAIRS = new Map([["(", ")"], ["[", "]"], ["{", "}"]]);
const CLOSING = new Set(PAIRS.values());

function isPaired(line) {
  const stack = [];
  for (const char of line) {
    if (PAIRS.has(char)) stack.push(PAIRS.get(char));
    else if (CLOSING.has(char) && stack.pop() !== char) return false;
  }
  return stack.length === 0;
}

let text = "";
process.stdin.setEncoding("utf8");
process.stdin.on("data", (chunk) => (text += chunk));
process.stdin.on("end", () => {
  for (const line of text.replace(/\n$/, "").split("\n")) console.log(isPaired(line) ? "yes" : "no");
});
