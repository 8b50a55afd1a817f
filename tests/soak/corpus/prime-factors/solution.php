<?php
function factors(int $n): Generator
{
    for ($d = 2; $d * $d <= $n; $d++) {
        for (; $n % $d === 0; $n = intdiv($n, $d)) {
            yield $d;
        }
    }
    if ($n > 1) {
        yield $n;
    }
}

while (fscanf(STDIN, '%d', $n) === 1) {
    echo implode(' ', iterator_to_array(factors($n), false)) . "\n";
}
