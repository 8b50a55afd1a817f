use std::io::stdin;

type Stone = (u8, u8);

fn has_chain(first: u8, last: u8, stones: &[Stone]) -> bool {
    if stones.is_empty() {
        return first == last;
    }
    stones.iter().enumerate().any(|(i, &(a, b))| {
        let rest = [&stones[..i], &stones[i + 1..]].concat();
        (a == last && has_chain(first, b, &rest)) || (b == last && has_chain(first, a, &rest))
    })
}

fn parse(word: &str) -> Option<Stone> {
    let (a, b) = word.split_once('-')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

fn main() {
    for line in stdin().lines() {
        let stones: Option<Vec<Stone>> = line.unwrap().split(' ').map(parse).collect();
        let stones = stones.expect("dominoes");
        let [(first, last), rest @ ..] = &stones[..] else { panic!("no dominoes") };
        println!("{}", if has_chain(*first, *last, rest) { "yes" } else { "no" });
    }
}
