#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char words[1000][64];
static int used;

static int compare(const void *a, const void *b) { return strcmp(a, b); }

int main(void) {
    int length = 0, c, next;
    while ((c = getchar()) != EOF) {
        if (length == 0 && used == 1000) return 1;
        if (isalnum(c) && length < 63) {
            words[used][length++] = (char)tolower(c);
            continue;
        }
        if (c == '\'' && length > 0) {
            next = getchar();
            ungetc(next, stdin);
            if (isalpha(next)) {
                words[used][length++] = '\'';
                continue;
            }
        }
        if (length > 0) ++used;
        length = 0;
    }
    if (length > 0) ++used;
    qsort(words, (size_t)used, sizeof words[0], compare);
    for (int i = 0, count; i < used; i += count) {
        for (count = 1; i + count < used && !strcmp(words[i], words[i + count]);) ++count;
        printf("%s %d\n", words[i], count);
    }
    return 0;
}
