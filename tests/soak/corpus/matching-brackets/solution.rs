use std::io::{self, BufRead};

fn is_paired(line: &str) -> bool {
    let mut stack = vec![];
    for c in line.chars() {
        match c {
            '(' => stack.push(')'),
            '[' => stack.push(']'),
            '{' => stack.push('}'),
            ')' | ']' | '}' if stack.pop() != Some(c) => return false,
            _ => {}
        }
    }
    stack.is_empty()
}

fn main() {
    for line in io::stdin().lock().lines() {
        println!("{}", if is_paired(&line.unwrap()) { "yes" } else { "no" });
    }
}
