#include <stdio.h>
#include <stdlib.h>

int main(void) {
    long n, count = 0, sum = 0;
    if (scanf("%ld", &n) != 1) return 1;
    char *composite = calloc((size_t)n + 1, 1);
    if (!composite) return 1;
    for (long p = 2; p <= n; ++p) {
        if (composite[p]) continue;
        printf("%ld\n", p);
        ++count;
        sum += p;
        for (long m = p * p; m <= n; m += p) composite[m] = 1;
    }
    printf("%ld %ld\n", count, sum);
    free(composite);
    return 0;
}
