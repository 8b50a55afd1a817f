use std::collections::BTreeMap;
use std::io::{read_to_string, stdin};

fn main() {
    let text = read_to_string(stdin()).unwrap().to_lowercase();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '\'') {
        let word = word.trim_matches('\'');
        if !word.is_empty() {
            *counts.entry(word).or_default() += 1;
        }
    }
    for (word, count) in counts {
        println!("{word} {count}");
    }
}
