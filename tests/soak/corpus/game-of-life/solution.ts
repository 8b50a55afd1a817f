import { readFileSync } from "node:fs";

type Cell = 0 | 1;
type Board = Cell[][];

function* neighbours(board: Board, x: number, y: number): Iterable<Cell> {
  for (const dy of [-1, 0, 1]) {
    for (const dx of [-1, 0, 1]) {
      if (dx || dy) yield board[y + dy]?.[x + dx] ?? 0;
    }
  }
}

function tick(board: Board): Board {
  return board.map((row, y) =>
    row.map((cell, x): Cell => {
      const near = [...neighbours(board, x, y)].reduce<number>((sum, each) => sum + each, 0);
      return near === 3 || (cell && near > 1 && near < 4) ? 1 : 0;
    }),
  );
}

const [generations, ...rows] = readFileSync(0, "utf8").trim().split("\n");
let board: Board = rows.map((row) => [...row].map((cell): Cell => (cell === "#" ? 1 : 0)));
for (let i = 0; i < Number(generations); i++) board = tick(board);
for (const row of board) console.log(row.map((cell) => ".#"[cell]).join(""));
