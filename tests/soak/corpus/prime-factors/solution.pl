use strict;
use warnings;

while (defined(my $n = <STDIN>)) {
    chomp $n;
    my @found;
    for (my $d = 2; $d * $d <= $n; $d++) {
        while ($n % $d == 0) {
            push @found, $d;
            $n /= $d;
        }
    }
    push @found, $n if $n > 1;
    print join(' ', @found), "\n";
}
