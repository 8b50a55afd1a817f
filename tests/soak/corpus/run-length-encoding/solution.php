<?php
function encode(string $text): string
{
    return preg_replace_callback('/(.)\1+/', fn ($run) => strlen($run[0]) . $run[1], $text);
}

function decode(string $text): string
{
    return preg_replace_callback('/(\d*)(\D)/', fn ($run) => str_repeat($run[2], $run[1] ?: 1), $text);
}

while (($line = fgets(STDIN)) !== false) {
    [$command, $text] = explode(' ', rtrim($line, "\n"), 2);
    echo $command($text), "\n";
}
