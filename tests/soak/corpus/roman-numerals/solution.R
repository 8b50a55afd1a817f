values <- c(1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
names(values) <- strsplit("M CM D CD C XC L XL X IX V IV I", " ")[[1]]

roman <- function(number) {
  text <- ""
  for (numeral in names(values)) {
    text <- paste0(text, strrep(numeral, number %/% values[numeral]))
    number <- number %% values[numeral]
  }
  text
}

numbers <- as.integer(readLines(file("stdin")))
writeLines(vapply(numbers, roman, character(1)))
