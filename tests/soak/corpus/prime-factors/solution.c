#include <inttypes.h>
#include <stdio.h>

int main(void) {
    int64_t n;
    while (scanf("%" SCNd64, &n) == 1) {
        const char *separator = "";
        for (int64_t d = 2; d * d <= n; ++d) {
            for (; n % d == 0; n /= d) {
                printf("%s%" PRId64, separator, d);
                separator = " ";
            }
        }
        if (n > 1) printf("%s%" PRId64, separator, n);
        printf("\n");
    }
    return 0;
}
