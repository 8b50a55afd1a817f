#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static char stones[32][2];
static int count;

static bool has_chain(char first, char last, unsigned laid) {
    if (laid == (1u << count) - 1) return first == last;
    for (int i = 0; i < count; ++i) {
        if (laid >> i & 1) continue;
        for (int side = 0; side < 2; ++side)
            if (stones[i][side] == last && has_chain(first, stones[i][1 - side], laid | 1u << i)) return true;
    }
    return false;
}

int main(void) {
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        count = 0;
        for (char *word = strtok(line, " \n"); word && count < 31; word = strtok(NULL, " \n")) {
            stones[count][0] = word[0];
            stones[count++][1] = word[2];
        }
        puts(has_chain(stones[0][0], stones[0][1], 1) ? "yes" : "no");
    }
    return 0;
}
