use strict;
use warnings;

sub has_chain {
    my ($first, $last, @stones) = @_;
    return $first == $last unless @stones;
    for my $i (0 .. $#stones) {
        my @rest = @stones;
        my ($stone) = splice @rest, $i, 1;
        my ($one, $other) = @$stone;
        return 1 if $one == $last && has_chain($first, $other, @rest);
        return 1 if $other == $last && has_chain($first, $one, @rest);
    }
    return 0;
}

while (<STDIN>) {
    my ($start, @rest) = map { [split /-/] } split;
    print has_chain(@$start, @rest) ? "yes\n" : "no\n";
}
