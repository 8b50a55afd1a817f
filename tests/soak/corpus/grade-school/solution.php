<?php
$grades = [];
foreach (file('php://stdin', FILE_IGNORE_NEW_LINES | FILE_SKIP_EMPTY_LINES) as $line) {
    [$name, $grade] = explode(' ', $line);
    $grades[$name] ??= (int) $grade;
}
$roster = [];
foreach ($grades as $name => $grade) {
    $roster[$grade][] = $name;
}
ksort($roster);
foreach ($roster as $grade => $names) {
    sort($names);
    printf("%d: %s\n", $grade, implode(' ', $names));
}
