import { readFileSync } from "node:fs";

const years = {
  Mercury: 0.2408467,
  Venus: 0.61519726,
  Earth: 1,
  Mars: 1.8808158,
  Jupiter: 11.862615,
  Saturn: 29.447498,
  Uranus: 84.016846,
  Neptune: 164.79132,
} as const satisfies Record<string, number>;

type Planet = keyof typeof years;
const isPlanet = (name: string): name is Planet => name in years;

for (const [, planet, seconds] of readFileSync(0, "utf8").matchAll(/(\w+) (\d+)/g)) {
  if (!isPlanet(planet!)) throw new Error(`unknown planet: ${planet}`);
  console.log((Number(seconds) / 31557600 / years[planet]).toFixed(7));
}
