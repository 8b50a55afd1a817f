const encode = (text) => text.replace(/(.)\1+/g, (run, char) => run.length + char);
const decode = (text) => text.replace(/(\d*)(\D)/g, (_, length, char) => char.repeat(length || 1));

const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const [, command, text] = line.match(/^(\w+) (.*)$/);
  console.log(command === "encode" ? encode(text) : decode(text));
});
