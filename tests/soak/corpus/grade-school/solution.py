"""Print the roster of a school."""

import sys

grades = {}
for line in sys.stdin:
    name, grade = line.split()
    grades.setdefault(name, int(grade))
for grade in sorted(set(grades.values())):
    names = [name for name in grades if grades[name] == grade]
    print(f"{grade}:", *sorted(names))
