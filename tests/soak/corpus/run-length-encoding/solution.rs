use std::io::stdin;

fn encode(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let tail = rest.trim_start_matches(c);
        let run = rest.len() - tail.len();
        if run > 1 {
            result += &run.to_string();
        }
        result.push(c);
        rest = tail;
    }
    result
}

fn decode(text: &str) -> String {
    let mut length = 0;
    let mut result = String::new();
    for c in text.chars() {
        if let Some(digit) = c.to_digit(10) {
            length = length * 10 + digit as usize;
        } else {
            result.extend(std::iter::repeat(c).take(length.max(1)));
            length = 0;
        }
    }
    result
}

fn main() {
    for line in stdin().lines().map(Result::unwrap) {
        match line.split_once(' ') {
            Some(("encode", text)) => println!("{}", encode(text)),
            Some(("decode", text)) => println!("{}", decode(text)),
            _ => panic!("unknown command"),
        }
    }
}
