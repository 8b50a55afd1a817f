use std::io;

fn main() {
    let mut line = String::new();
    io::stdin().read_line(&mut line).unwrap();
    let n: usize = line.trim().parse().unwrap();
    let mut composite = vec![false; n + 1];
    let mut primes = Vec::new();
    for p in 2..=n {
        if composite[p] {
            continue;
        }
        primes.push(p);
        for m in (p * p..=n).step_by(p) {
            composite[m] = true;
        }
    }
    primes.iter().for_each(|p| println!("{p}"));
    println!("{} {}", primes.len(), primes.iter().sum::<usize>());
}
