use std::io::{read_to_string, stdin};

type Board = Vec<Vec<bool>>;

fn neighbours(board: &Board, x: usize, y: usize) -> usize {
    let rows = &board[y.saturating_sub(1)..board.len().min(y + 2)];
    let alive: usize = rows
        .iter()
        .map(|row| row[x.saturating_sub(1)..row.len().min(x + 2)].iter().filter(|&&cell| cell).count())
        .sum();
    alive - usize::from(board[y][x])
}

fn tick(board: &Board) -> Board {
    let mut next = board.clone();
    for (y, row) in next.iter_mut().enumerate() {
        for (x, cell) in row.iter_mut().enumerate() {
            *cell = matches!((board[y][x], neighbours(board, x, y)), (true, 2 | 3) | (_, 3));
        }
    }
    next
}

fn main() {
    let text = read_to_string(stdin()).unwrap();
    let mut lines = text.lines();
    let generations: u32 = lines.next().unwrap().parse().unwrap();
    let board: Board = lines.map(|line| line.bytes().map(|b| b == b'#').collect()).collect();
    for row in (0..generations).fold(board, |board, _| tick(&board)) {
        let line: String = row.iter().map(|&cell| if cell { '#' } else { '.' }).collect();
        println!("{line}");
    }
}
