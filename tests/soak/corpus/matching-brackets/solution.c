#include <stdbool.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    static const char opening[] = "([{", closing[] = ")]}";
    char line[4096], stack[4096];
    while (fgets(line, sizeof line, stdin)) {
        int depth = 0;
        bool good = true;
        for (const char *c = line, *found; *c && good; ++c) {
            if ((found = strchr(opening, *c))) {
                stack[depth++] = closing[found - opening];
            } else if (strchr(closing, *c)) {
                good = depth > 0 && stack[--depth] == *c;
            }
        }
        puts(good && depth == 0 ? "yes" : "no");
    }
    return 0;
}
