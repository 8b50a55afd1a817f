use strict;
use warnings;

my ($command, $rest) = split ' ', <STDIN>, 2;
die "crash" if $command eq 'crash';
if ($command eq 'spin') { 1 while 1 }
if ($command eq 'eat') {
    my @eaten;
    push @eaten, 'x' x (1 << 20) while 1;
}
if ($command eq 'sh') { system($rest) == 0 or die $? }
print "done\n";
