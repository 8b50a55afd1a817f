use std::io::stdin;
use std::str::FromStr;

const EARTH_YEAR_S: f64 = 31_557_600.0;

struct Planet {
    years: f64,
}

impl FromStr for Planet {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let years = match name {
            "Mercury" => 0.2408467,
            "Venus" => 0.61519726,
            "Earth" => 1.0,
            "Mars" => 1.8808158,
            "Jupiter" => 11.862615,
            "Saturn" => 29.447498,
            "Uranus" => 84.016846,
            "Neptune" => 164.79132,
            _ => return Err(format!("unknown planet: {name}")),
        };
        Ok(Planet { years })
    }
}

fn main() {
    for line in stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split_whitespace();
        let planet: Planet = words.next().unwrap().parse().unwrap();
        let seconds: f64 = words.next().unwrap().parse().unwrap();
        println!("{:e}", seconds / EARTH_YEAR_S / planet.years);
    }
}
