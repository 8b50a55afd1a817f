<?php
function hasChain(int $first, int $last, array $stones): bool
{
    if ($stones === []) {
        return $first === $last;
    }
    foreach ($stones as $i => [$a, $b]) {
        $rest = $stones;
        unset($rest[$i]);
        if (($a === $last && hasChain($first, $b, $rest)) || ($b === $last && hasChain($first, $a, $rest))) {
            return true;
        }
    }
    return false;
}

while ($line = fgets(STDIN)) {
    $stones = array_map(fn (string $stone) => array_map(intval(...), explode('-', $stone)), explode(' ', trim($line)));
    [$first, $last] = array_shift($stones);
    echo hasChain($first, $last, $stones) ? "yes\n" : "no\n";
}
