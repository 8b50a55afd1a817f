const years = {
  Mercury: 0.2408467, Venus: 0.61519726, Earth: 1, Mars: 1.8808158, Jupiter: 11.862615, Saturn: 29.447498, Uranus: 84.016846, Neptune: 164.79132,
};

async function main() {
  let text = "";
  for await (const chunk of process.stdin) text += chunk;
  for (const line of text.trimEnd().split("\n")) {
    const [planet, seconds] = line.split(" ");
    console.log(seconds / 31557600 / years[planet]);
  }
}

main();
