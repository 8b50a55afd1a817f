#include <stdio.h>
#include <string.h>

enum { SIZE = 100 };

/* A border of dead cells is around the board. */
static char board[SIZE + 2][SIZE + 2], next[SIZE + 2][SIZE + 2];

int main(void) {
    int generations, height = 0, width = 0;
    char row[SIZE + 1];
    if (scanf("%d", &generations) != 1) return 1;
    while (height < SIZE && scanf("%100s", row) == 1) {
        width = (int)strlen(row);
        ++height;
        for (int x = 1; x <= width; ++x) board[height][x] = row[x - 1] == '#';
    }
    while (generations-- > 0) {
        for (int y = 1; y <= height; ++y) {
            for (int x = 1; x <= width; ++x) {
                int near = -board[y][x];
                for (int j = y - 1; j <= y + 1; ++j)
                    for (int i = x - 1; i <= x + 1; ++i) near += board[j][i];
                next[y][x] = near == 3 || (near > 1 && near < 4 && board[y][x]);
            }
        }
        memcpy(board, next, sizeof board);
    }
    for (int y = 1; y <= height; ++y) {
        for (int x = 1; x <= width; ++x) putchar(board[y][x] ? '#' : '.');
        putchar('\n');
    }
    return 0;
}
