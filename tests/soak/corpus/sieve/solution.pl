use strict;
use warnings;

chomp(my $n = <STDIN>);
my ($composite, $count, $sum) = ('', 0, 0);
for my $p (2 .. $n) {
    next if vec($composite, $p, 1);
    print "$p\n";
    $count++;
    $sum += $p;
    for (my $m = $p * $p; $m <= $n; $m += $p) { vec($composite, $m, 1) = 1 }
}
print "$count $sum\n";
