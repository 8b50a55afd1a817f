lines <- readLines(file("stdin"))
board <- do.call(rbind, strsplit(lines[-1], "")) == "#"

tick <- function(board) {
  padded <- matrix(0, nrow(board) + 2, ncol(board) + 2)
  rows <- seq_len(nrow(board)) + 1
  columns <- seq_len(ncol(board)) + 1
  padded[rows, columns] <- board
  near <- -board
  for (dy in -1:1) for (dx in -1:1) near <- near + padded[rows + dy, columns + dx]
  near == 3 | (board & near > 1 & near < 4)
}

for (i in seq_len(as.integer(lines[1]))) board <- tick(board)
writeLines(apply(ifelse(board, "#", "."), 1, paste, collapse = ""))
