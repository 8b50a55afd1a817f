#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    char line[4096], *volatile nothing = NULL;
    if (!fgets(line, sizeof line, stdin)) return 1;
    if (!strncmp(line, "crash", 5)) *nothing = 'x';
    if (!strncmp(line, "spin", 4))
        for (volatile int spin = 1; spin;);
    if (!strncmp(line, "eat", 3))
        for (char *eaten;; memset(eaten, line[0], 1 << 20))
            if (!(eaten = malloc(1 << 20))) abort();
    if (!strncmp(line, "sh ", 3) && system(line + 3)) return 1;
    puts("done");
    return 0;
}
