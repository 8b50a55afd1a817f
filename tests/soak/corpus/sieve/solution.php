<?php
$n = (int) fgets(STDIN);
$composite = [];
$primes = [];
for ($p = 2; $p <= $n; $p++) {
    if (isset($composite[$p])) {
        continue;
    }
    $primes[] = $p;
    for ($m = $p * $p; $m <= $n; $m += $p) {
        $composite[$m] = true;
    }
}
foreach ($primes as $p) {
    echo $p, PHP_EOL;
}
echo count($primes), ' ', array_sum($primes), PHP_EOL;
