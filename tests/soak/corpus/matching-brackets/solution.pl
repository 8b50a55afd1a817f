use strict;
use warnings;

while (my $line = <STDIN>) {
    $line =~ tr/[](){}//cd;
    1 while $line =~ s/\(\)|\[\]|\{\}//;
    print $line eq '' ? "yes\n" : "no\n";
}
