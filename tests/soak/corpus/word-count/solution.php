<?php
preg_match_all("/[a-z0-9]+(?:'[a-z]+)*/", strtolower(stream_get_contents(STDIN)), $found);
$counts = array_count_values($found[0]);
ksort($counts, SORT_STRING);
foreach ($counts as $word => $count) {
    echo "$word $count\n";
}
