use strict;
use warnings;

my %years = (
    Mercury => 0.2408467, Venus  => 0.61519726, Earth  => 1,         Mars    => 1.8808158,
    Jupiter => 11.862615, Saturn => 29.447498,  Uranus => 84.016846, Neptune => 164.79132,
);

while (<STDIN>) {
    my ($planet, $seconds) = /^(\w+) (\d+)$/ or die "unreadable line: $_";
    printf "%.6f\n", $seconds / 31557600 / $years{$planet};
}
