<?php
while (($line = fgets(STDIN)) !== false) {
    $line = preg_replace('/[^\[\](){}]/', '', $line);
    do {
        $line = str_replace(['()', '[]', '{}'], '', $line, $count);
    } while ($count);
    echo $line === '' ? 'yes' : 'no', "\n";
}
