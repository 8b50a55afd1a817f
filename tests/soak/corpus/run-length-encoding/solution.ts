import { createInterface } from "node:readline";

type Coder = (text: string) => string;

enum Command {
  Encode = "encode",
  Decode = "decode",
}

const coders: Record<Command, Coder> = {
  [Command.Encode]: (text) => {
    const runs: string[] = text.match(/(.)\1*/g) ?? [];
    return runs.map((run) => (run.length > 1 ? String(run.length) : "") + run[0]).join("");
  },
  [Command.Decode]: (text) => text.replace(/(\d+)(\D)/g, (_, length: string, char: string) => char.repeat(Number(length))),
};

for await (const line of createInterface({ input: process.stdin })) {
  const space: number = line.indexOf(" ");
  console.log(coders[line.slice(0, space) as Command](line.slice(space + 1)));
}
