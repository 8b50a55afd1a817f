<?php
function tick(array $board): array
{
    $next = $board;
    foreach ($board as $y => $row) {
        for ($x = 0; $x < strlen($row); $x++) {
            $near = 0;
            foreach ([-1, 0, 1] as $dy) {
                foreach ([-1, 0, 1] as $dx) {
                    $near += (int) (($dx || $dy) && $x + $dx >= 0 && ($board[$y + $dy][$x + $dx] ?? '.') == '#');
                }
            }
            $next[$y][$x] = $near === 3 || ($near > 1 && $near < 4 && $row[$x] == '#') ? '#' : '.';
        }
    }
    return $next;
}

$board = explode("\n", trim(stream_get_contents(STDIN)));
for ($generations = (int) array_shift($board); $generations > 0; $generations--) {
    $board = tick($board);
}
echo implode("\n", $board), "\n";
