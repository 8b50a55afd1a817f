input <- file("stdin", "r")
while (length(line <- readLines(input, n = 1)) > 0) {
  line <- gsub("[^][(){}]", "", line)
  repeat {
    shorter <- gsub("\\(\\)|\\[\\]|\\{\\}", "", line)
    if (shorter == line) break
    line <- shorter
  }
  cat(if (nchar(line) == 0) "yes\n" else "no\n")
}
