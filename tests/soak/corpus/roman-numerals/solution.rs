use std::fmt::{self, Display, Formatter};
use std::io::{read_to_string, stdin};

const NUMERALS: [(u32, &str); 13] = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"),
    (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
];

struct Roman(u32);

impl Display for Roman {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        NUMERALS
            .iter()
            .scan(self.0, |rest, (value, text)| {
                let count = *rest / value;
                *rest %= value;
                Some(text.repeat(count as usize))
            })
            .try_for_each(|text| f.write_str(&text))
    }
}

fn main() {
    read_to_string(stdin())
        .unwrap()
        .lines()
        .map(|line| Roman(line.parse().unwrap()))
        .for_each(|number| println!("{number}"));
}
