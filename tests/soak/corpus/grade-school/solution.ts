import * as fs from "fs";

class School {
  private readonly roster = new Map<number, string[]>();

  constructor(private readonly known = new Set<string>()) {}

  add(name: string, grade: number): void {
    if (this.known.has(name)) return;
    this.known.add(name);
    this.roster.set(grade, [...(this.roster.get(grade) ?? []), name]);
  }

  get grades(): [number, string[]][] {
    return [...this.roster].sort(([a], [b]) => a - b).map(([grade, names]) => [grade, names.sort()]);
  }
}

const school = new School();
for (const line of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const [name, grade] = line.split(" ");
  school.add(name!, Number(grade));
}
for (const [grade, names] of school.grades) console.log(`${grade}:`, ...names);
