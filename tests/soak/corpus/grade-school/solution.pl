use strict;
use warnings;

my (%known, %roster);
while (<>) {
    my ($name, $grade) = split;
    push @{ $roster{$grade} }, $name unless $known{$name}++;
}
for my $grade (sort { $a <=> $b } keys %roster) {
    print "$grade: @{[sort @{ $roster{$grade} }]}\n";
}
