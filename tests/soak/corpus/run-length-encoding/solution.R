encode <- function(text) {
  runs <- rle(strsplit(text, "")[[1]])
  paste0(ifelse(runs$lengths > 1, runs$lengths, ""), runs$values, collapse = "")
}

decode <- function(text) {
  runs <- regmatches(text, gregexpr("[0-9]*[^0-9]", text))[[1]]
  lengths <- as.integer(sub("[^0-9]", "", sub("^([^0-9])", "1\\1", runs)))
  paste0(strrep(sub("[0-9]*", "", runs), lengths), collapse = "")
}

for (line in readLines(file("stdin"))) {
  code <- if (startsWith(line, "encode")) encode else decode
  writeLines(code(substring(line, 8)))
}
