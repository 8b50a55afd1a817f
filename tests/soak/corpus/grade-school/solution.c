#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct student {
    char name[32];
    int grade;
};

static int compare(const void *one, const void *other) {
    const struct student *a = one, *b = other;
    return a->grade != b->grade ? a->grade - b->grade : strcmp(a->name, b->name);
}

int main(void) {
    struct student students[100], read;
    int used = 0;
    while (used < 100 && scanf("%31s %d", read.name, &read.grade) == 2) {
        int i = 0;
        while (i < used && strcmp(students[i].name, read.name)) ++i;
        if (i == used) students[used++] = read;
    }
    qsort(students, (size_t)used, sizeof *students, compare);
    for (int i = 0; i < used; ++i) {
        if (i == 0 || students[i].grade != students[i - 1].grade) printf("%s%d:", i ? "\n" : "", students[i].grade);
        printf(" %s", students[i].name);
    }
    puts("");
    return 0;
}
