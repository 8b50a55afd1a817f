use strict;
use warnings;

my @numerals = qw(M 1000 CM 900 D 500 CD 400 C 100 XC 90 L 50 XL 40 X 10 IX 9 V 5 IV 4 I 1);

sub roman {
    my ($number) = @_;
    my $text = '';
    for (my $i = 0; $i < @numerals; $i += 2) {
        my ($numeral, $value) = @numerals[$i, $i + 1];
        $text .= $numeral x int($number / $value);
        $number %= $value;
    }
    return $text;
}

print roman($_), "\n" for <STDIN>;
