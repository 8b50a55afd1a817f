use std::io::stdin;
use std::process::Command;

fn main() {
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    let (command, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    match command {
        "crash" => println!("{}", [1, 2][line.len()]),
        "spin" => loop {
            std::hint::spin_loop();
        },
        "eat" => {
            let mut eaten = Vec::new();
            loop {
                eaten.push(vec![b'x'; 1 << 20]);
            }
        }
        "sh" => assert!(Command::new("sh").args(["-c", rest]).status().unwrap().success()),
        _ => {}
    }
    println!("done");
}
