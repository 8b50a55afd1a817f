<?php
declare(strict_types=1);

enum Planet: string
{
    case Mercury = 'Mercury';
    case Venus = 'Venus';
    case Earth = 'Earth';
    case Mars = 'Mars';
    case Jupiter = 'Jupiter';
    case Saturn = 'Saturn';
    case Uranus = 'Uranus';
    case Neptune = 'Neptune';

    public function years(): float
    {
        return match ($this) {
            self::Mercury => 0.2408467,
            self::Venus => 0.61519726,
            self::Earth => 1.0,
            self::Mars => 1.8808158,
            self::Jupiter => 11.862615,
            self::Saturn => 29.447498,
            self::Uranus => 84.016846,
            self::Neptune => 164.79132,
        };
    }
}

while (fscanf(STDIN, '%s %f', $name, $seconds) === 2) {
    printf("%.6f\n", $seconds / 31557600 / Planet::from($name)->years());
}
