has_chain <- function(first, last, stones) {
  if (ncol(stones) == 0) return(first == last)
  for (i in seq_len(ncol(stones))) {
    for (side in 1:2) {
      if (stones[side, i] == last && has_chain(first, stones[3 - side, i], stones[, -i, drop = FALSE])) return(TRUE)
    }
  }
  FALSE
}

for (line in readLines(file("stdin"))) {
  stones <- matrix(as.integer(strsplit(line, "[- ]")[[1]]), nrow = 2)
  cat(if (has_chain(stones[1, 1], stones[2, 1], stones[, -1, drop = FALSE])) "yes" else "no", sep = "", fill = TRUE)
}
