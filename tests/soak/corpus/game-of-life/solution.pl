use strict;
use warnings;

chomp(my ($generations, @rows) = <STDIN>);
my @board = map { [map { $_ eq '#' ? 1 : 0 } split //] } @rows;

sub alive {
    my ($x, $y) = @_;
    return $x >= 0 && $y >= 0 && $y < @board && ($board[$y][$x] // 0);
}

for (1 .. $generations) {
    my @next;
    for my $y (0 .. $#board) {
        for my $x (0 .. $#{ $board[$y] }) {
            my $near = -alive($x, $y);
            for my $dy (-1 .. 1) {
                $near += alive($x + $_, $y + $dy) ? 1 : 0 for -1 .. 1;
            }
            $next[$y][$x] = $near == 3 || ($near > 1 && $near < 4 && $board[$y][$x]) ? 1 : 0;
        }
    }
    @board = @next;
}
print map({ $_ ? '#' : '.' } @$_), "\n" for @board;
