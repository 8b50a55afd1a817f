text <- tolower(paste(readLines(file("stdin")), collapse = "\n"))
words <- regmatches(text, gregexpr("[a-z0-9]+('[a-z]+)*", text))[[1]]
counts <- table(words)
for (word in sort(unique(words), method = "radix")) cat(word, counts[[word]], "\n")
