factors <- function(n) {
  found <- numeric()
  d <- 2
  while (d * d <= n) {
    if (n %% d == 0) {
      found <- c(found, d)
      n <- n / d
    } else {
      d <- d + 1
    }
  }
  if (n > 1) c(found, n) else found
}

for (n in scan(file("stdin"), quiet = TRUE)) {
  cat(format(factors(n), scientific = FALSE, trim = TRUE), "\n")
}
