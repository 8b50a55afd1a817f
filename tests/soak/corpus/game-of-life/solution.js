const [generations, ...rows] = require("fs").readFileSync(0, "utf8").trim().split("\n");

const at = (board, x, y) => Number(board[y]?.[x] === "#");

function tick(board) {
  return board.map((row, y) =>
    [...row]
      .map((cell, x) => {
        let near = -at(board, x, y);
        for (let dy = -1; dy <= 1; dy++) for (let dx = -1; dx <= 1; dx++) near += at(board, x + dx, y + dy);
        return near === 3 || (near > 1 && near < 4 && cell === "#") ? "#" : ".";
      })
      .join(""),
  );
}

let board = rows;
for (let i = 0; i < Number(generations); i++) board = tick(board);
console.log(board.join("\n"));
