#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void encode(const char *text) {
    for (int run; *text; text += run) {
        for (run = 1; text[run] == *text;) ++run;
        if (run > 1) printf("%d", run);
        putchar(*text);
    }
}

static void decode(char *text) {
    while (*text) {
        char *end;
        long run = *text == ' ' ? 0 : strtol(text, &end, 10);
        if (run) text = end;
        do putchar(*text); while (--run > 0);
        ++text;
    }
}

int main(void) {
    char line[1024];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == 'e') encode(line + 7);
        else decode(line + 7);
        putchar('\n');
    }
    return 0;
}
