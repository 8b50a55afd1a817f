<?php
const NUMERALS = [
    'M' => 1000, 'CM' => 900, 'D' => 500, 'CD' => 400, 'C' => 100, 'XC' => 90, 'L' => 50,
    'XL' => 40, 'X' => 10, 'IX' => 9, 'V' => 5, 'IV' => 4, 'I' => 1,
];

foreach (explode("\n", trim(file_get_contents('php://stdin'))) as $line) {
    $number = (int) $line;
    foreach (NUMERALS as $numeral => $value) {
        echo str_repeat($numeral, intdiv($number, $value));
        $number %= $value;
    }
    echo "\n";
}
