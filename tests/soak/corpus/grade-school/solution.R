students <- read.table(file("stdin"), col.names = c("name", "grade"), colClasses = c("character", "integer"))
students <- students[!duplicated(students$name), ]
students <- with(students, students[order(grade, name, method = "radix"), ])
for (grade in unique(students$grade)) {
  cat(paste0(grade, ":"), students$name[students$grade == grade], fill = FALSE)
  cat("\n")
}
