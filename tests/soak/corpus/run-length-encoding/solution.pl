use strict;
use warnings;

sub encode { shift =~ s/(.)\1+/length($&) . $1/ger }
sub decode { shift =~ s/(\d*)(\D)/$2 x ($1 || 1)/ger }

while (my $line = <STDIN>) {
    chomp $line;
    my ($command, $text) = $line =~ /^(\w+) (.*)$/;
    print $command eq 'encode' ? encode($text) : decode($text), "\n";
}
