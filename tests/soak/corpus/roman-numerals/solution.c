#include <stdio.h>

int main(void) {
    static const char *const digits[4][10] = {
        {"", "M", "MM", "MMM"},
        {"", "C", "CC", "CCC", "CD", "D", "DC", "DCC", "DCCC", "CM"},
        {"", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX", "XC"},
        {"", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"},
    };
    for (unsigned n; scanf("%u", &n) == 1;)
        printf("%s%s%s%s\n", digits[0][n / 1000], digits[1][n / 100 % 10], digits[2][n / 10 % 10], digits[3][n % 10]);
    return 0;
}
