use std::io::{stdin, BufRead};

fn factors(mut n: u64) -> Vec<String> {
    let mut found = Vec::new();
    let mut d = 2;
    while d * d <= n {
        if n % d == 0 {
            found.push(d.to_string());
            n /= d;
        } else {
            d += 1;
        }
    }
    if n > 1 {
        found.push(n.to_string());
    }
    found
}

fn main() {
    for line in stdin().lock().lines() {
        let n: u64 = line.expect("text").trim().parse().expect("a number");
        println!("{}", factors(n).join(" "));
    }
}
