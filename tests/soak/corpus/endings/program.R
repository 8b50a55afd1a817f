line <- readLines(file("stdin"), n = 1)
command <- sub(" .*", "", line)
if (command == "crash") stop("crash")
if (command == "spin") repeat {}
if (command == "eat") {
  eaten <- list()
  repeat eaten[[length(eaten) + 1]] <- runif(2^17)
}
if (command == "sh") stopifnot(system(sub("sh ", "", line)) == 0)
cat("done\n")
