use strict;
use warnings;

my %counts;
while (my $line = lc(<STDIN> // '')) {
    $counts{$&}++ while $line =~ /[a-z0-9]+(?:'[a-z]+)*/g;
}
print "$_ $counts{$_}\n" for sort keys %counts;
