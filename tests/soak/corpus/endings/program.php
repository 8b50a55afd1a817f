<?php
[$command, $rest] = explode(' ', trim(fgets(STDIN)), 2) + [1 => ''];
switch ($command) {
    case 'crash':
        echo intdiv(1, 0);
        break;
    case 'spin':
        while (true);
    case 'eat':
        for ($eaten = [];;) {
            $eaten[] = str_repeat('x', 1 << 20);
        }
    case 'sh':
        passthru($rest, $status);
        if ($status !== 0) {
            exit(1);
        }
}
echo "done\n";
